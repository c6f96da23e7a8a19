"""Aims: thresholds at which the pass that adds the gradient to the residual also collects entries.

The selector selects among these entries (the candidates), and needs no pass of its own.

An aim lies slightly below the threshold of the tensor's previous step, so that the candidates
include all entries that will be selected. Candidates that are not selected go back to the residual.
The distance between the aim and the previous threshold (the margin) adapts, because too few
candidates cost another pass, and too many make the list longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.rows import LEAST, MOST, steered
from hvd_sparse.types import Memo

AIM = 0.97
"""A search starts at this factor times the previous threshold. With error feedback, many entries
lie just below that threshold, so a search that started higher would need another pass."""

START = 0.03
"""Margin of a tensor's first aim: the fraction by which it lies below the previous threshold."""

SMALLEST, LARGEST = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""The smallest normal float32, and the largest float32."""

CAPACITY = 6
"""Capacity of an aim, as a multiple of k. If more entries reach the aim, the pass collects none."""

FEW = 4096
"""The capacity of an aim is at least k plus this number, because short lists cost little."""


@dataclass(frozen=True)
class Band:
    """A range of accepted counts. A search for a threshold ends when ``least`` to ``most`` entries
    reach the threshold. If the search fails, the ``wanted`` largest entries are selected."""

    least: int
    wanted: int
    most: int

    def __contains__(self, count: int) -> bool:
        return self.least <= count <= self.most


@dataclass(frozen=True)
class Cut:
    """The decision to select the ``count`` largest of the collected entries (candidates).

    memo : the selector's state for the tensor's next step
    is_fallback : ``count`` is the limit, because more entries than the limit reached the threshold
    threshold : threshold for the tensor's next step. None stands for the aim's threshold when all
        candidates are selected, and for the smallest selected magnitude when only some are
    """

    count: int
    memo: Memo = None
    is_fallback: bool = False
    threshold: float | None = None


@dataclass(frozen=True)
class Miss:
    """An aim that failed: the selector cannot select among the entries that reach the aim, usually
    because these are too few or too many. The selector then has to search the whole vector.

    aim : the threshold at which entries were collected, and the capacity of the list
    count : number of entries that reach the aim; None if it exceeds the aim's capacity
    is_sure : False if one tensor of a group has no list of candidates, for example because too many
        reached the aim. The group's count is then unknown, and may be within the capacity
    """

    aim: Aim
    count: int | None
    is_sure: bool = True

    @property
    def retry(self) -> float:
        """The threshold at which a search starts: 5 % above the aim's threshold if too many entries
        reached the aim (more than its capacity), and 5 % below it if too few did."""
        return self.aim.threshold * (1.05 if self.count is None else 0.95)

    @property
    def known(self) -> tuple[float, int] | None:
        """The aim's threshold and the number of entries that reach it, which a search need not
        count. The number is at most capacity + 1. None if it is unknown (not ``is_sure``)."""
        if not self.is_sure:
            return None
        return self.aim.threshold, self.aim.capacity + 1 if self.count is None else self.count


def aim_below(warm: float | None, margin: Memo, count: int, numel: int) -> Aim | None:
    """Return an aim (a threshold at which to collect entries) below ``warm``, the threshold of the
    previous step. ``margin`` is the distance as a fraction of ``warm``; ``count`` is k. Return None
    if k is 0 or ``warm`` is None, and also if ``warm`` is subnormal, because some threads flush
    subnormal numbers to zero."""
    if warm is None or warm < SMALLEST or not count:
        return None
    capacity = min(numel, max(CAPACITY * count, count + FEW))
    return Aim((1.0 - margin_of(margin)) * warm, capacity)


def aim_at(warm: float | None, capacity: int) -> Aim | None:
    """Return an aim (a threshold at which to collect entries) for selectors that use the previous
    step's threshold, ``warm``, again. If more than ``capacity`` entries reach the aim, none is
    collected. Return None if ``warm`` is None, 0, subnormal or beyond the range of float32."""
    return Aim(warm, capacity) if warm and SMALLEST <= warm <= LARGEST else None


def steer(margin: Memo, found: int | None, needed: int) -> float:
    """Return the margin of the next aim: the fraction by which it lies below the last threshold.
    ``margin`` is that of the last aim; None at first. The margin grows if ``found``, the number of
    collected entries, is below or hardly above ``needed``, and narrows slowly if ``found`` is
    clearly above. It is halved if ``found`` is None: the entries exceeded the capacity."""
    if found is None:
        return float(min(MOST, max(LEAST, 0.5 * margin_of(margin))))
    return float(steered(margin_of(margin), found, needed))


def margin_of(memo: Memo) -> float:
    return float(memo) if isinstance(memo, (int, float)) else START
