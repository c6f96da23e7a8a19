"""Goals for the work of a step on two ranks, and their comparison with the measured work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks._page import Goal, Quartiles
from benchmarks.step.models import BIAS, OVERHEAD, SMALL, TITLES
from benchmarks.step.summary import Summary

OURS = "ldte_bs"
RANKS = 2
DENSITY = 0.001
TIMES_FLOOR = {"resnet50": 2.0, "transformer": 2.5, "lstm": 1.4, "vgg16": 1.5}
"""Goals for our method by model, relative to the floor."""
PAIRS_US = {OURS: 40.0, "ldte_bs,optimizer=sgd": 60.0, "ldte_bs,optimizer=adam": 60.0}
"""Goals in microseconds for ``compress`` plus ``decompress`` of a compressed tensor, by method."""
DENSE_US = 8.0
TIMES_OURS = {"dgc": 1.5}
"""Goals for other methods, relative to ours on the same model. Both times are relative to the floor
of their launch."""
CLIPPED = "ldte_bs,memory={'id':'momentum_correction','clip_norm':3000.0}"
"""Method with clipping. On 2 ranks, it clips the gradients to 0.64 and 0.76 of their norms."""
BESIDE: dict[str, tuple[str, dict[str, float]]] = {
    "large": (
        OURS,
        {"ldte_bs,optimizer=adam": 3.5, "ldte_bs,optimizer=nesterov": 2.5, CLIPPED: 2.5},
    ),
    "ddp": ("residual.add_", {"hook": 2.0}),
    "tensorflow": ("torch", {"tensorflow": 1.5, "tensorflow, groups=4": 1.5}),
}
"""Launches that compare several ways: the first way, and goals of the others relative to it."""

Row = tuple[str, str, str, str]
"""Description, measured value, goal, and verdict."""


def verdicts(summaries: Sequence[Summary], density: object) -> Iterator[Row]:
    if density != DENSITY:
        return
    found = {(each.model, each.method): each for each in summaries if each.ranks == RANKS}
    for model, limit in TIMES_FLOOR.items():
        if (model, OURS) in found:
            work = found[model, OURS].work
            yield _row(f"{TITLES[model]}, `{OURS}`: times the floor", work, limit)
    tensor = f"a compressed tensor of {SMALL[0] * SMALL[1]:,} entries"
    for method, limit in PAIRS_US.items():
        summary = found.get((OVERHEAD, method))
        if summary is not None and summary.sparse_us is not None:
            yield _row(f"{tensor}, `{method}`: us of the pair of calls", summary.sparse_us, limit)
    summary = found.get((OVERHEAD, OURS))
    if summary is not None and summary.dense_us is not None:
        what = f"a dense tensor of {BIAS[0]}, `{OURS}`: us of the pair of calls"
        yield _row(what, summary.dense_us, DENSE_US)
    for method, limit in TIMES_OURS.items():
        for model in TIMES_FLOOR:
            if (model, method) in found and (model, OURS) in found:
                ratio = found[model, method].work.median / found[model, OURS].work.median
                goal, what = Goal(limit), f"{TITLES[model]}, `{method}`: times `{OURS}`"
                yield what, f"{ratio:.2f}", str(goal), goal.verdict(ratio)


def verdicts_beside(launched: str, rows: Sequence[dict[str, float]]) -> Iterator[Row]:
    first, others = BESIDE[launched]
    for way, limit in others.items():
        times = Quartiles.of(np.array([row[way] / row[first] for row in rows]))
        yield _row(f"{TITLES[launched]}, `{way}`: times `{first}`", times, limit)


def _row(what: str, measured: Quartiles, limit: float) -> Row:
    goal = Goal(limit)
    return what, str(measured), str(goal), goal.verdict(measured.median)
