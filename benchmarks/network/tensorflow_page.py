"""Steps in TensorFlow on shaped hosts: whole ones, beside the better of dense and fp16."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks._streams import markdown_table
from benchmarks.network.summary import by_round, interval, spread
from benchmarks.network.whole_steps import FrontendPage

DENSE = ("dense", "fp16")
COMPUTE = {"none": "nothing computed", "busy": "products of matrices before the first gradient"}

INTRODUCTION = """\
# In TensorFlow, over a real wire

`scripts/bench-network --frontend tensorflow` makes this page: whole steps of a `tf.function` with
Horovod's `DistributedGradientTape`, from gradients that are given to averaged ones on the slowest
rank; "busy" computes before them, for as long as `--backward-ms` says on a core of its own. Every
method runs in every round, each round in another order; "step" is the median over rounds, with the
least and the most; "times the better" is the quotient of the medians over the rounds of the method
and of the better of dense and fp16, with the interval in which it lies in 95 of 100 cases
(bootstrapped over the rounds). `auto` has made its choice before the first round. The hosts are
network namespaces of one machine and share its cores, which real hosts do not.
"""


def table(setting: dict[str, Any]) -> str:
    """One line a method."""
    rows = setting["rows"]
    seconds = {
        method: by_round(rows, method) for method in dict.fromkeys(row["method"] for row in rows)
    }
    better = min(
        (seconds[name] for name in DENSE if name in seconds),
        key=lambda each: float(np.median(each)),
    )
    cells = []
    for method, taken in seconds.items():
        step, times = spread(1e3 * taken), interval(taken, better)
        cells.append(
            [
                method,
                f"{step['median']:,.1f} ({step['low']:,.1f} to {step['high']:,.1f})",
                f"{times['median']:.3f} ({times['low']:.3f} to {times['high']:.3f})",
            ]
        )
    return markdown_table(["method", "step, ms", "times the better"], cells)


PAGE = FrontendPage(INTRODUCTION, COMPUTE, table)
