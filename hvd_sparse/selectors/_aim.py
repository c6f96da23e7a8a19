"""Aiming low: taking candidates in the pass that adds the gradient, so that no pass is made to
select.

Under error feedback the accumulated entries pile up just below the last cut.  A threshold a little
below it is reached by all that will be selected and by a few more: cutting these down is work on a
short list, and the rest goes back to the residual.  How much lower is steered by how many came: a
pass that caught too few costs another one, one that caught too many only a longer list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hvd_sparse.core.kernels.contract import Aim

START = 0.03
"""Margin below the last threshold before anything was learnt."""

LEAST, MOST = 0.0005, 0.3
"""Bounds of the margin."""

SLACK, MOST_SLACK = 1.05, 2.5
"""Candidates over those needed, below which the next step aims lower: it was nearly a miss.  Few
scatter more than many, as their square root: ``_slack``."""

SCATTER = 8.0
"""Standard deviations of a count that the slack is to be good for."""

PLENTY = 4.0
"""Candidates over those needed, above which the margin narrows faster."""

SMALLEST = 2.0**-126
"""The smallest normal float32."""

CAPACITY = 6
"""Candidates over k beyond which the list is not short, and the threshold was not a good one."""

FEW = 4096
"""Candidates that are a short list whatever k is."""


@dataclass(frozen=True)
class Cut:
    """How many of the candidates, the largest, are selected, and what the next step is told."""

    count: int
    memo: Any = None


@dataclass(frozen=True)
class Miss:
    """An aim that did not do.

    Attributes
    ----------
    aim : what the pass was to take
    count : how many entries reach it; None where they were more than its capacity
    """

    aim: Aim
    count: int | None

    @property
    def retry(self) -> float:
        """Where to search next: a little further down, where the pile is, or up."""
        return self.aim.threshold * (1.05 if self.count is None else 0.95)

    @property
    def known(self) -> tuple[float, int]:
        """A threshold, and a bound on its count that tells on which side of it to search."""
        return self.aim.threshold, self.aim.capacity + 1 if self.count is None else self.count


def aim_below(warm: float | None, margin: Any, count: int, numel: int) -> Aim | None:
    """A margin below the last threshold; None where there is none, or one that some threads take
    for zero."""
    if warm is None or warm < SMALLEST or not count:
        return None
    return Aim((1.0 - _of(margin)) * warm, min(numel, max(CAPACITY * count, count + FEW)))


def steer(margin: Any, found: int | None, needed: int) -> float:
    """The next margin, from how many candidates came; None says too many to take.

    A miss widens it at once and what comes after narrows it slowly, so that misses are about as
    rare on noisy gradients, which get a wide margin, as on steady ones, which get hardly any.
    """
    margin = _of(margin)
    if found is None:
        wanted = 0.5 * margin
    elif found < needed:
        wanted = 2.0 * margin + 0.001
    elif found < _slack(needed) * needed:
        wanted = 1.2 * margin
    else:
        wanted = (0.98 if found < PLENTY * needed else 0.93) * margin
    return float(min(MOST, max(LEAST, wanted)))


def _slack(needed: int) -> float:
    return min(MOST_SLACK, SLACK + SCATTER / math.sqrt(max(1, needed)))


def _of(margin: Any) -> float:
    return START if margin is None else float(margin)
