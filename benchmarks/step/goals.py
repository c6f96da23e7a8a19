"""Goals for the work of a step, and the measured work beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._interleaved_timing import Quartiles
from benchmarks.step.models import BIAS, OVERHEAD, SMALL, TITLES
from benchmarks.step.summary import Summary

OURS = "ldte_bs"
RANKS = 2
DENSITY = 0.001
TIMES_FLOOR = {"resnet50": 3.0, "transformer": 2.5, "lstm": 2.5, "vgg16": 2.2}
PAIR_US = {"sparse_us": 60.0, "dense_us": 15.0}
DGC_TIMES_OURS = 1.5


@dataclass(frozen=True)
class Verdict:
    """A goal, beside what was measured.

    Attributes
    ----------
    what : in words
    measured : the figure that decides, with its spread
    at_most : the goal
    unit : of both, with a blank before it
    """

    what: str
    measured: float
    spread: str
    at_most: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.measured <= self.at_most

    def cells(self) -> list[str]:
        """Return what, measured, goal and verdict, in words."""
        found = f"{self.measured:.2f}{self.unit}{self.spread}"
        by = self.measured / self.at_most
        verdict = "met" if self.is_met else f"missed: {by:.2f} times as much"
        return [self.what, found, f"≤ {self.at_most:g}{self.unit}", verdict]

    def describe(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "what": self.what,
            "measured": self.measured,
            "at_most": self.at_most,
            "unit": self.unit.strip(),
            "is_met": self.is_met,
        }


def verdicts(summaries: Sequence[Summary], density: float | str) -> list[Verdict]:
    """Return a verdict for every goal whose figures are there."""
    if density != DENSITY:
        return []
    found = {(s.model, s.method): s for s in summaries if s.ranks == RANKS}
    told = []
    for model, limit in TIMES_FLOOR.items():
        if (model, OURS) in found:
            work = found[model, OURS].work
            what = f"{TITLES[model]}, `{OURS}`: times the floor"
            told.append(Verdict(what, work.median, _spread(work), limit))
    told += _of_pairs(found.get((OVERHEAD, OURS)))
    for model in TIMES_FLOOR:
        if (model, OURS) in found and (model, "dgc") in found:
            ratio = found[model, "dgc"].work.median / found[model, OURS].work.median
            what = f"{TITLES[model]}, `dgc`: times `{OURS}`, both times the floor of their launch"
            told.append(Verdict(what, ratio, "", DGC_TIMES_OURS))
    return told


def _of_pairs(summary: Summary | None) -> list[Verdict]:
    if summary is None:
        return []
    named = {
        "sparse_us": f"a compressed tensor of {SMALL[0] * SMALL[1]:,} entries",
        "dense_us": f"a dense tensor of {BIAS[0]}",
    }
    told = []
    for name, limit in PAIR_US.items():
        measured = getattr(summary, name)
        what = f"{named[name]}, `{OURS}`: the pair of calls"
        told.append(Verdict(what, measured.median, _spread(measured), limit, " us"))
    return told


def _spread(quartiles: Quartiles) -> str:
    return f" ({quartiles.low:.2f} to {quartiles.high:.2f})"
