"""Steps of DistributedDataParallel on shaped hosts: our hook beside PyTorch's own."""

from __future__ import annotations

from typing import Any

from benchmarks._streams import markdown_table
from benchmarks.network.summary import by_round, ratio, spread
from benchmarks.network.whole_steps import FrontendPage

COMPUTE = {"none": "nothing computed", "asleep": "replayed backward, asleep"}

INTRODUCTION = """\
# DistributedDataParallel, over a real wire

`scripts/bench-network --frontend ddp` makes this page: steps of DistributedDataParallel over Gloo,
without a hook (`dense`), with PyTorch's own `fp16_compress_hook` and `powerSGD_hook` (of rank 1, 2
and 4, with its defaults but in one bucket, which leaves when the backward pass ends: over Gloo it
stands still with more), and with `hvd_sparse.ddp.register`. Gradients are given, drawn from
recorded ones, layer behind layer, where said at the times of a recorded backward pass, which sleeps
in between. Every method runs in every round in a launch of its own, each round in another order;
"step" is the slowest rank's, the median over rounds with the least and the most; "over dense" is
dense's step over this one's within each round; "received" are the bytes of a host's interface in a
step, headers included, "worked" the processor's time of all threads of a rank. The hosts are
network namespaces of one machine and share its cores, which real hosts do not: what a hook computes
counts for more here. None of it tells of accuracy: PowerSGD of a rank and a density are different
compromises.
"""


def table(setting: dict[str, Any]) -> str:
    """One line a method."""
    rows, cells = setting["rows"], []
    for method in dict.fromkeys(row["method"] for row in rows):
        step, over = spread(1e3 * by_round(rows, method)), ratio(rows, "dense", method)
        received = spread(by_round(rows, method, "received") / 1e6)["median"]
        worked = spread(1e3 * by_round(rows, method, "all_threads"))["median"]
        cells.append(
            [
                f"`{method}`",
                f"{step['median']:,.0f} ({step['low']:,.0f} to {step['high']:,.0f})",
                f"{over['median']:.2f} ({over['low']:.2f} to {over['high']:.2f})",
                f"{received:,.2f}",
                f"{worked:,.0f}",
            ]
        )
    return markdown_table(["hook", "step, ms", "over dense", "received, MB", "worked, ms"], cells)


PAGE = FrontendPage(INTRODUCTION, COMPUTE, table)
