"""Accuracy under DistributedDataParallel: the search of rates, and differences on the page."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.distributed", reason="DDP is PyTorch's")
pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

from benchmarks.ddp_accuracy import page
from benchmarks.ddp_accuracy.worker import LADDER, search


@pytest.mark.parametrize("best", range(len(LADDER)))
def test_a_rate_is_searched_until_it_has_worse_ones_beside_it(best: int) -> None:
    tried = search(lambda rate: abs(LADDER.index(rate) - best))
    assert min(tried, key=lambda rate: tried[rate]) == LADDER[best]
    assert {LADDER[i] for i in (best - 1, best + 1) if 0 <= i < len(LADDER)} <= set(tried)


def test_differences_are_taken_seed_by_seed() -> None:
    def row(method: str, accuracies: list[float]) -> dict:
        runs = [{"accuracy": each, "loss": 0.5, "nbytes": 4.0} for each in accuracies]
        return {"method": method, "rate": 0.1, "tried": [0.1], "runs": runs}

    rows = [row("dense", [90.0, 80.0, 70.0]), row("fp16", [89.0, 80.0, 70.0])]
    mean, error = page.difference({each["method"]: each for each in rows}, "fp16", "accuracy")
    assert mean == pytest.approx(-1 / 3) and error == pytest.approx(1 / 3)
    assert "-0.33 ± 0.33" in page.table({"rows": rows})
