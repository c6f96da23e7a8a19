"""Steps of DistributedDataParallel over the wire: what the bench refuses and counts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed", reason="DDP is PyTorch's")
pytest.importorskip("horovod.torch", reason="the bench's command is written over Horovod")

from _spaces import finish, needs_spaces, start

from benchmarks.network import ddp_page
from benchmarks.network.options import parse

FRONTEND = ["--frontend", "ddp"]


def test_ratios_are_taken_within_rounds():
    taken = {"dense": (0.2, 0.4), "ldte_bs": (0.1, 0.1)}
    rows = [
        {"method": name, "round": r, "total": s, "received": 1e6, "all_threads": s}
        for name, both in taken.items()
        for r, s in enumerate(both)
    ]
    assert "3.00 (2.00 to 4.00)" in ddp_page.table({"rows": rows}).splitlines()[3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compute", "real"], "--compute none or asleep"),
        (["--methods", "dense", "topk"], "topk is of Horovod's"),
    ],
)
def test_what_it_does_not_measure_is_refused(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", *FRONTEND, *arguments])
    with pytest.raises(SystemExit):
        parse()
    assert words in capsys.readouterr().err


@needs_spaces
def test_hooks_are_measured_and_their_bytes_are_in_order(tmp_path: Path):
    arguments = [*FRONTEND, "--hosts", "2", "--rates", "1gbit", "--models", "transformer"]
    arguments += ["--compute", "asleep", "--rounds", "1", "--steps", "1", "--warmup", "3"]
    arguments += ["--methods", "dense", "powersgd1", "ldte_bs", "--output", str(tmp_path / "ddp")]
    code, output = finish(start([sys.executable, "-m", "benchmarks.network", *arguments]), 200)
    assert code == 0, output[-6000:]
    (setting,) = json.loads((tmp_path / "ddp.json").read_text())["settings"]
    rows = {row["method"]: row for row in setting["rows"]}
    assert rows["dense"]["received"] > 20 * rows["ldte_bs"]["received"] > 0
    assert rows["dense"]["received"] > 5 * rows["powersgd1"]["received"] > 0
    assert all(row["total"] >= 0.08 for row in rows.values())  # the backward pass that is replayed
    assert "over dense" in (tmp_path / "ddp.md").read_text()
