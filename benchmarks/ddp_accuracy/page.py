"""The page of accuracy under DistributedDataParallel: differences to plain DDP, seed by seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks._streams import markdown_table

NAMES = {
    "dense": "no hook",
    "fp16": "`fp16_compress_hook`",
    **{f"powersgd{rank}": f"`powerSGD_hook`, rank {rank}" for rank in (1, 2, 4)},
}


def difference(rows: dict[str, dict[str, Any]], method: str, key: str) -> tuple[float, float]:
    """Return the mean difference to plain DDP and its standard error, over the seeds' pairs."""
    pairs = zip(rows[method]["runs"], rows["dense"]["runs"], strict=True)
    found = np.array([mine[key] - dense[key] for mine, dense in pairs])
    return float(found.mean()), float(found.std(ddof=1) / math.sqrt(found.size))


def table(found: dict[str, Any]) -> str:
    """Return one line a hook."""
    rows = {row["method"]: row for row in found["rows"]}
    lines = []
    for method, row in rows.items():
        means = {key: float(np.mean([run[key] for run in row["runs"]])) for key in row["runs"][0]}
        beside = ["", ""]
        if method != "dense":
            accuracy, loss = (difference(rows, method, key) for key in ("accuracy", "loss"))
            beside = [
                f"{accuracy[0]:+.2f} ± {accuracy[1]:.2f}",
                f"{loss[0]:+.4f} ± {loss[1]:.4f}",
            ]
        name = NAMES.get(method, f"`{method.split()[0]}`, density {method.split()[-1]}")
        shown = [f"{means['accuracy']:.2f} %", beside[0], f"{means['loss']:.4f}", beside[1]]
        lines.append([name, f"{row['rate']:g}", *shown, f"{means['nbytes']:,.0f}"])
    head = ["hook", "rate", "accuracy", "beside no hook", "loss", "beside no hook", "bytes a step"]
    return markdown_table(head, lines)


def render(found: dict[str, Any]) -> str:
    """Return the page."""
    made = ", ".join(f"{key} {value}" for key, value in found["made_with"].items())
    return f"""# Accuracy under DistributedDataParallel

What short trainings reach with `hvd_sparse.ddp.register` and with PyTorch's own hooks, beside DDP
without a hook. Made by `python -m benchmarks.ddp_accuracy` with {made}: {found["ranks"]} real
ranks over Gloo, a CNN of {found["numel"]:,} parameters on scikit-learn's handwritten digits,
{found["steps"]} steps of SGD with momentum 0.9 and 64 images, a rate that falls to 0 along a
cosine. Every hook's rate is searched alike, by the test loss of a seed of its own: three rates of a
ladder of doubling ones, and further ones while the best is at an end. Then come {found["seeds"]}
seeds; differences are to plain DDP of the same seed, with their standard error: points of test
accuracy (more is better), and mean cross entropy (less is better). Bytes are what a rank gives its
collectives, on the average over all steps.

{table(found)}

PowerSGD has its defaults, with a tenth of the steps dense at first, which its bytes include, and
one bucket; `ldte_bs` has the optimizer handed over (`optimizer=`), below density 0.01 a warm-up
over the first quarter of the steps, and tensors below its `min_numel` go dense. The digits are
easy and the network small: differences say which hook does harm, not which is best in a long
training. Steps of the same hooks over a network: [network-ddp](network-ddp.md).
"""
