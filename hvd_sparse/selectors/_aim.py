"""Aims: taking candidates in the pass that adds the gradient, so that selecting needs no pass.

Under error feedback the accumulated entries pile up just below the last threshold. An aim a little
below it is reached by all entries that will be selected and by a few more. Cutting these down is
work on a short list, and the rest goes back to the residual. The margin below the threshold follows
the number of candidates: a pass that caught too few costs another pass, one that caught too many
costs only a longer list.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.rows import LEAST, MOST, steered
from hvd_sparse.types import Memo

AIM = 0.97
"""Part of the last threshold to start at: under error feedback entries pile up just below it.

A start a little low costs a few times k candidates, among which the search goes on; one too high
costs a pass over everything."""

START = 0.03
"""Margin below the last threshold before anything was learnt."""

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest normal float32, and the largest."""

CAPACITY = 6
"""Candidates over k above which the list is no longer short: the threshold was a bad one."""

FEW = 4096
"""Candidates that are a short list whatever k is."""


@dataclass(frozen=True)
class Cut:
    """The decision about the candidates: the largest ``count`` of them are selected.

    count : how many candidates are selected
    memo : state for the tensor's next step
    is_fallback : exact top-k on the candidates chose, because the selector's own rule took too many
    threshold : for the next step's warm start; None for the aim's if all are selected, else for the
        smallest selected magnitude
    """

    count: int
    memo: Memo = None
    is_fallback: bool = False
    threshold: float | None = None


@dataclass(frozen=True)
class Miss:
    """An aim whose candidates could not be used.

    aim : the aim of the pass
    count : how many entries reach it; None if they exceed its capacity
    is_sure : False if a tensor of a group had no room for its entries, so that the group's count is
        not known to exceed the capacity
    """

    aim: Aim
    count: int | None
    is_sure: bool = True

    @property
    def retry(self) -> float:
        """The threshold to search from: a little lower, where the entries pile up, or higher."""
        return self.aim.threshold * (1.05 if self.count is None else 0.95)

    @property
    def known(self) -> tuple[float, int]:
        """The aim's threshold and a bound on its count, which tells the side to search on."""
        return self.aim.threshold, self.aim.capacity + 1 if self.count is None else self.count


def aim_below(
    warm: float | None, margin: Memo, count: int, numel: int, brings: tuple[str, ...] = ()
) -> Aim | None:
    """Return an aim a margin below the last threshold; None without one, or for a subnormal one,
    which some threads take for zero."""
    if warm is None or warm < SMALLEST or not count:
        return None
    return Aim(
        (1.0 - margin_of(margin)) * warm, min(numel, max(CAPACITY * count, count + FEW)), brings
    )


def aim_at(warm: float | None, capacity: int) -> Aim | None:
    """Return an aim at the last threshold itself, to use it again; None as for ``aim_below``."""
    return Aim(warm, capacity) if warm and SMALLEST <= warm <= LARGEST else None


def steer(margin: Memo, found: int | None, needed: int) -> float:
    """Return the next margin, given how many candidates came.

    A miss widens the margin at once, and later steps narrow it slowly. So misses are about as rare
    on noisy gradients, which get a wide margin, as on steady ones, which get hardly any.

    margin : the last margin, or None at the first step
    found : how many candidates came; None if they exceed the aim's capacity
    needed : how many candidates the selector needs
    """
    if found is None:
        return float(min(MOST, max(LEAST, 0.5 * margin_of(margin))))
    return float(steered(margin_of(margin), found, needed))


def margin_of(memo: Memo) -> float:
    return float(memo) if isinstance(memo, (int, float)) else START
