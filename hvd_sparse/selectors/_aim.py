"""Aims, by which the pass that adds the gradient also collects the entries that a selector may
select.

The collected entries are called candidates. An aim lies slightly below the tensor's last threshold,
so that all entries that will be selected reach it, and a few more, which go back to the residual.
The margin below the last threshold adapts to the number of candidates, because too few cost another
pass, and too many only a longer list.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.rows import LEAST, MOST, steered
from hvd_sparse.types import Memo

AIM = 0.97
"""Factor of the last threshold at which a search starts. Under error feedback many entries lie just
below the last threshold, and a start above them costs another pass."""

START = 0.03
"""Initial margin: the fraction by which an aim lies below the last threshold."""

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest normal float32, and the largest float32."""

CAPACITY = 6
"""Capacity of an aim, as a multiple of k. More candidates show that the threshold is unsuitable."""

FEW = 4096
"""Smallest capacity of an aim; a list of this length is short for any k."""


@dataclass(frozen=True)
class Cut:
    """A selector's decision about the candidates: the largest ``count`` of them are selected.

    memo, is_fallback : as in ``Found``
    threshold : threshold for the next step's warm start. None stands for the aim's threshold if all
        candidates are selected, otherwise for the smallest selected magnitude
    """

    count: int
    memo: Memo = None
    is_fallback: bool = False
    threshold: float | None = None


@dataclass(frozen=True)
class Miss:
    """An aim whose candidates could not be used.

    count : how many entries reach the aim; None if they exceed its capacity
    is_sure : False if one tensor of a group exceeded its part of the capacity, so that the count of
        the whole group may still fit
    """

    aim: Aim
    count: int | None
    is_sure: bool = True

    @property
    def retry(self) -> float:
        """The threshold from which a search starts."""
        return self.aim.threshold * (1.05 if self.count is None else 0.95)

    @property
    def known(self) -> tuple[float, int]:
        """The aim's threshold, and the number of entries that reach it or, if that is unknown, a
        lower bound of the number. They tell a search on which side of the aim the threshold
        lies."""
        return self.aim.threshold, self.aim.capacity + 1 if self.count is None else self.count


def aim_below(
    warm: float | None, margin: Memo, count: int, numel: int, brings: tuple[str, ...] = ()
) -> Aim | None:
    """Return an aim below the last threshold ``warm``, by the fraction ``margin`` of it.

    It is None if there is no last threshold, or a subnormal one, which some threads flush to zero.
    """
    if warm is None or warm < SMALLEST or not count:
        return None
    return Aim(
        (1.0 - margin_of(margin)) * warm, min(numel, max(CAPACITY * count, count + FEW)), brings
    )


def aim_at(warm: float | None, capacity: int) -> Aim | None:
    """Return an aim at the last threshold, to use this threshold again. None if there is no last
    threshold, or it is subnormal or exceeds float32."""
    return Aim(warm, capacity) if warm and SMALLEST <= warm <= LARGEST else None


def steer(margin: Memo, found: int | None, needed: int) -> float:
    """Return the next margin. If the needed entries were not found, the margin grows at once; later
    steps narrow it slowly.

    margin : the last margin, or None at the first step
    found : number of candidates; None if they exceed the aim's capacity
    needed : number of candidates that the selector needs
    """
    if found is None:
        return float(min(MOST, max(LEAST, 0.5 * margin_of(margin))))
    return float(steered(margin_of(margin), found, needed))


def margin_of(memo: Memo) -> float:
    return float(memo) if isinstance(memo, (int, float)) else START
