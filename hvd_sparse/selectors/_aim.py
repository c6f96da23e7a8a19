"""Aims: taking candidates in the pass that adds the gradient, so that selectors need no other.

An aim slightly below the last threshold is reached by all entries that will be selected and by a
few more, which go back to the residual. The margin below the threshold adapts to the number of
candidates, because too few cost another pass, and too many only a longer list.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.rows import LEAST, MOST, steered
from hvd_sparse.types import Memo

AIM = 0.97
"""Factor of the last threshold at which a search starts, because under error feedback entries pile
up just below it, and a start too high costs a pass."""

START = 0.03
"""Initial margin below the last threshold."""

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest normal float32, and the largest."""

CAPACITY = 6
"""Capacity of an aim, as a multiple of k; more candidates show that the threshold is bad."""

FEW = 4096
"""Least capacity of an aim; a list of this length is short for any k."""


@dataclass(frozen=True)
class Cut:
    """The decision about the candidates: the largest ``count`` of them are selected.

    memo, is_fallback : as in ``Found``
    threshold : for the next step's warm start; None stands for the aim's if all are selected,
        otherwise for the smallest selected magnitude
    """

    count: int
    memo: Memo = None
    is_fallback: bool = False
    threshold: float | None = None


@dataclass(frozen=True)
class Miss:
    """An aim whose candidates could not be used.

    count : how many entries reach it; None if they exceed its capacity
    is_sure : False if only a tensor of a group had no room, so that the group's count may fit
    """

    aim: Aim
    count: int | None
    is_sure: bool = True

    @property
    def retry(self) -> float:
        """The threshold to start a search from."""
        return self.aim.threshold * (1.05 if self.count is None else 0.95)

    @property
    def known(self) -> tuple[float, int]:
        """The aim's threshold and a bound on its count, which gives the side for the search."""
        return self.aim.threshold, self.aim.capacity + 1 if self.count is None else self.count


def aim_below(
    warm: float | None, margin: Memo, count: int, numel: int, brings: tuple[str, ...] = ()
) -> Aim | None:
    """Return an aim a margin below the last threshold; None without one, or for a subnormal one,
    because some threads flush it to zero."""
    if warm is None or warm < SMALLEST or not count:
        return None
    return Aim(
        (1.0 - margin_of(margin)) * warm, min(numel, max(CAPACITY * count, count + FEW)), brings
    )


def aim_at(warm: float | None, capacity: int) -> Aim | None:
    """Return an aim at the last threshold, to reuse it; None as for ``aim_below``."""
    return Aim(warm, capacity) if warm and SMALLEST <= warm <= LARGEST else None


def steer(margin: Memo, found: int | None, needed: int) -> float:
    """Return the next margin; a miss widens it at once, and later steps narrow it slowly.

    margin : the last margin, or None at the first step
    found, needed : number of candidates, None if they exceed the aim's capacity, and of those that
        the selector needs
    """
    if found is None:
        return float(min(MOST, max(LEAST, 0.5 * margin_of(margin))))
    return float(steered(margin_of(margin), found, needed))


def margin_of(memo: Memo) -> float:
    return float(memo) if isinstance(memo, (int, float)) else START
