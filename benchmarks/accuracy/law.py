"""The law of density and steps: how the gap to dense training depends on the number of times that
an entry is sent in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.ours import density_of
from benchmarks.accuracy.rules import is_compressed
from benchmarks.accuracy.tasks import TASKS
from benchmarks.accuracy.training import Line
from hvd_sparse.methods.builder import density_for


@dataclass(frozen=True)
class Law:
    """gap = scale * exp(-times / reach) + rest."""

    scale: float
    reach: float
    rest: float

    def gap(self, times: float) -> float:
        return float(self.scale * np.exp(-times / self.reach) + self.rest)


def times_sent(line: Line) -> float:
    _, *told = line.rule.split("/")
    if not told:
        return density_for(line.steps) * line.steps
    parameters = TASKS[line.task].network().parameters()
    numels = tuple(p.numel() for p in parameters if is_compressed(p))
    return density_of(1 / float(told[0]), numels) * line.steps


def fit(points: Sequence[tuple[float, float]]) -> Law:
    """Return the law that fits three or more pairs (times sent, gap) best, by least squares."""
    times, gaps = np.array(points).T
    best = None
    for reach in np.geomspace(0.2, 20.0, 200):
        columns = np.stack([np.exp(-times / reach), np.ones_like(times)], axis=1)
        found, *_ = np.linalg.lstsq(columns, gaps, rcond=None)
        missed = float(np.square(columns @ found - gaps).sum())
        if best is None or missed < best[0]:
            best = missed, Law(float(found[0]), float(reach), float(found[1]))
    assert best is not None
    return best[1]
