"""Passes in torch operations, and the copies of their results to the host. A pass is a call of
``accumulate`` or ``accumulate_and_take`` for one tensor. The call only records the pass. When the
bucket is full, all its passes start together, and one copy per device fetches their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from hvd_sparse.kernels.contract import Aim, Moments, Taking
from hvd_sparse.kernels.torch.vector import (
    Copy,
    fetch,
    follow,
    in_one,
    numpy_dtype,
    reaching,
    stream_of,
)
from hvd_sparse.types import Selection


class Pass(NamedTuple):
    """Arguments of a pass: of ``accumulate_and_take``, or, if ``aim`` is None, of
    ``accumulate``."""

    gradient: torch.Tensor
    residual: torch.Tensor
    out: torch.Tensor
    aim: Aim | None

    @property
    def room(self) -> int:
        return max(0, min(self.aim.capacity, int(self.out.numel()))) if self.aim else 0


class Answers(NamedTuple):
    """The results of several passes, as int32 words on the device. ``read`` is a function that
    turns a copy of the words on the host into a list of results."""

    words: torch.Tensor
    read: Callable[[np.ndarray], Sequence[object]]


Begin = Callable[[Sequence[Pass]], Answers]
"""Function of an engine that starts passes of one dtype on a device, without waiting."""


class Coming:
    """The future result of a pass. Usually, ``deliver`` starts the pass together with the other
    passes of its bucket. If the result, or an attribute of it, is read before, the pass starts
    alone."""

    def __init__(self, one: Pass, begin: Begin) -> None:
        self.one, self.begin = one, begin
        self.stream = stream_of(one.out.device)
        self.delivery: tuple[Callable[[], Sequence[object]], int] | None = None

    def result(self) -> object:
        if self.delivery is None:
            answers = self.begin([self.one])
            found = answers.read(fetch(answers.words))
            self.delivery = (lambda: found), 0
        all_of_bucket, number = self.delivery
        return all_of_bucket()[number]

    def __getattr__(self, name: str) -> object:
        return getattr(self.result(), name)


def deliver(answers: Sequence[object], beside: Sequence[Copy] = ()) -> Callable[[], bool]:
    """Start those passes that have not been started, for which ``answers`` has a ``Coming``, and
    for each device one copy of their results to the host. Return a function that returns whether
    these copies, and those in ``beside``, are complete."""
    by_device: dict[torch.device, list[Coming]] = {}
    for each in answers:
        if isinstance(each, Coming) and each.delivery is None:
            by_device.setdefault(each.one.out.device, []).append(each)
    copies = [*map(_begun, by_device.values()), *beside]
    return lambda: all(copy.is_here() for copy in copies)


def _begun(coming: Sequence[Coming]) -> Copy:
    together: dict[tuple[Begin, torch.dtype], list[Coming]] = {}
    for each in coming:
        follow(each.stream)  # because another stream may have computed the tensor
        together.setdefault((each.begin, each.one.out.dtype), []).append(each)
    answers = joined(
        [begin([each.one for each in group]) for (begin, _), group in together.items()]
    )
    copy = Copy(answers.words)
    fetched = functools.cache(lambda: answers.read(copy.array()))
    for number, each in enumerate(chain(*together.values())):
        each.delivery = fetched, number
    return copy


def joined(several: Sequence[Answers]) -> Answers:
    if len(several) == 1:
        return several[0]
    words, places = in_one([each.words for each in several])
    pieces = list(zip(places, [each.read for each in several]))

    def read(fetched: np.ndarray) -> Sequence[object]:
        return [answer for place, own in pieces for answer in own(fetched[place])]

    return Answers(words, read)


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return a mask of the ``count`` entries of largest magnitude, without zeros and NaN. The first
    of equal magnitudes are selected. ``count`` must be at least 1, and x must not be empty."""
    magnitudes = torch.where(x.isnan(), torch.zeros_like(x), x.abs())
    # Use only the value that kthvalue finds, because its index depends on the device.
    least = magnitudes.kthvalue(x.numel() - count + 1).values
    above = magnitudes > least
    ties = (magnitudes == least) & (least > 0)
    return above | (ties & (ties.cumsum(0) <= count - above.sum()))


def take(x: torch.Tensor, mask: torch.Tensor, capacity: int) -> tuple[int, Selection | None]:
    count, taken, _ = unpacked(fetch(packed(x, mask, capacity)), x, capacity, 0)
    return count, taken


def packed(x: torch.Tensor, mask: torch.Tensor, capacity: int, *also: torch.Tensor) -> torch.Tensor:
    """Return one int32 tensor on the device with all results of a selection, so that a single copy
    brings them to the host, where ``unpacked`` reads them. These are the number of entries in the
    mask, the further scalars ``also`` (which must be exact in float64), and the first ``capacity``
    entries in the mask."""
    room = max(0, min(capacity, x.numel()))
    numbers = torch.stack([each.to(torch.float64) for each in (mask.sum(), *also)])
    indices = torch.nonzero_static(mask, size=room, fill_value=0).view(-1)
    return torch.cat(
        [numbers.view(torch.int32), indices.to(torch.int32), x[indices].view(torch.int32)]
    )


def unpacked(
    fetched: np.ndarray, x: torch.Tensor, capacity: int, also: int
) -> tuple[int, Selection | None, list[float]]:
    """Read a copy of the tensor that ``packed`` returned. Return three results: the number of
    entries in the mask; these entries, or None if there are more than ``capacity``; and a list of
    the scalars that ``packed`` got as its argument ``also``. Here, ``also`` is their number."""
    room, head = max(0, min(capacity, x.numel())), 2 * (1 + also)
    count, *rest = fetched[:head].view(np.float64).tolist()
    count = int(count)
    if count > capacity:
        return count, None, rest
    entries = fetched[head:]
    taken = entries[:count].view(np.uint32), entries[room:].view(numpy_dtype(x))[:count]
    return count, Selection(*taken, x.numel()), rest


def accumulated(one: Pass) -> Answers:
    return _looked_at(one) if one.aim is None else _taken(one, one.aim)


def _looked_at(one: Pass) -> Answers:
    kept, numel = one.residual, one.out.numel()
    total = kept + one.gradient
    found = pending_moments(total)
    torch.where(total.isfinite(), total, kept, out=one.out)
    return Answers(found.view(torch.int32), lambda words: [moments_in(words, numel)])


def _taken(one: Pass, aim: Aim) -> Answers:
    kept = one.residual
    total = kept + one.gradient
    magnitudes = total.abs()
    is_finite = magnitudes < float("inf")
    reaches = reaching(total, magnitudes, aim.threshold) & is_finite
    nonfinite = is_finite.logical_not().sum()
    # Compare with the capacity on the device, so that the host need not wait for the number.
    leaves = reaches & (reaches.sum() <= aim.capacity)
    rest = torch.where(is_finite, total, kept)
    torch.where(leaves, torch.zeros_like(total), rest, out=one.out)

    def read(fetched: np.ndarray) -> list[Taking]:
        _, taken, (bad,) = unpacked(fetched, kept, aim.capacity, 1)
        return [Taking(int(bad), taken)]

    return Answers(packed(total, reaches, aim.capacity, nonfinite), read)


def root(x: torch.Tensor) -> torch.Tensor:
    """Return the square roots, correctly rounded. Those of torch are correctly rounded only on some
    devices."""
    if x.dtype == torch.float32:
        return x.double().sqrt().float()
    near = x.sqrt()
    # Correct the root by the exact remainder x - near**2, with Dekker's product of its halves.
    large = near * 134217729.0
    high = large - (large - near)
    low = near - high
    square = near * near
    beyond = (high * high - square) + (high * low) * 2.0 + low * low
    better = near + ((x - square) - beyond) / (near * 2.0)
    return torch.where(torch.isfinite(better), better, near)


def pending_moments(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        return torch.zeros(3, dtype=torch.float64, device=x.device)
    magnitudes = x.abs()
    total, most = magnitudes.sum(dtype=torch.float64), magnitudes.max().to(torch.float64)
    return torch.stack([total, most, (x != 0).sum().to(torch.float64)])


def moments_in(found: np.ndarray, numel: int) -> Moments:
    total, most, nonzeros = found.view(np.float64).tolist()
    return Moments(total, most, int(nonzeros), numel)
