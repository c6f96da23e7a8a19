"""Passes on a device that are started bucket by bucket, and copies of their results to the host.

A tensor's pass is only recorded at first. When the bucket is full an engine starts the passes of
all its tensors together, and one copy per device fetches their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.torch.vector import Copy, fetch, follow, stream_of
from hvd_sparse.types import Selection

Answer = TypeVar("Answer", covariant=True)


class Pass(NamedTuple):
    """A pass over one tensor: add the gradient, measure, and take the entries that reach the aim.

    aim : None for a pass that takes nothing and returns moments
    """

    gradient: torch.Tensor
    residual: torch.Tensor
    out: torch.Tensor
    aim: Aim | None

    @property
    def room(self) -> int:
        """The largest number of entries in its list."""
        return max(0, min(self.aim.capacity, int(self.out.numel()))) if self.aim else 0


class Sum(NamedTuple):
    """The arguments of ``Kernels.assemble``, with the parts on the host."""

    out: torch.Tensor
    parts: Sequence[Selection]
    factor: float


class Answers(NamedTuple):
    """Results of passes, int32 words on their device, and the function that converts them on the
    host to a result per pass."""

    words: torch.Tensor
    read: Callable[[np.ndarray], Sequence[object]]


Begin = Callable[[Sequence[Pass]], Answers]
"""Function of an engine that starts passes of one dtype on a device, without waiting."""


class Coming(Generic[Answer]):
    """The result of a pass that may still run; reading an attribute waits for the result.

    The pass starts with those of its bucket (``Delivery``), or when the result is read.
    """

    def __init__(self, one: Pass, begin: Begin) -> None:
        self.one, self.begin = one, begin
        self.stream = stream_of(one.out.device)
        self._delivery: tuple[Parcel, int] | None = None
        self._answer: Answer | None = None

    @property
    def is_begun(self) -> bool:
        return self._delivery is not None or self._answer is not None

    def travel(self, parcel: Parcel, number: int) -> None:
        self._delivery = parcel, number

    def result(self) -> Answer:
        """Return the result, and wait for the device if necessary."""
        if self._answer is None:
            if self._delivery is None:
                answers = self.begin([self.one])
                found = answers.read(fetch(answers.words))[0]
            else:
                parcel, number = self._delivery
                found = parcel.answers()[number]
            self._answer = cast(Answer, found)
        return self._answer

    def __getattr__(self, name: str) -> object:
        return getattr(self.result(), name)


class Parcel:
    """Results on one device that are being copied to the host, in one copy."""

    def __init__(self, answers: Answers) -> None:
        self.copy, self._read = Copy(answers.words), answers.read
        self._answers: Sequence[object] | None = None

    def answers(self) -> Sequence[object]:
        if self._answers is None:
            self._answers = self._read(self.copy.array())
        return self._answers


class OnItsWay(Protocol):
    def is_here(self) -> bool:
        pass


class Delivery:
    """Starts a bucket's passes, and the copies of their results to the host, one per device.

    coming : results of passes that have not been started
    beside : further copies that have been started
    """

    def __init__(self, coming: Sequence[Coming[object]], beside: Sequence[OnItsWay] = ()) -> None:
        by_device: dict[torch.device, list[Coming[object]]] = {}
        for each in coming:
            by_device.setdefault(each.one.out.device, []).append(each)
        self._parcels, self._beside = [_begun(each) for each in by_device.values()], beside

    def is_here(self) -> bool:
        """Return whether the copies are complete, so that reading a result does not wait."""
        mine = all(parcel.copy.is_here() for parcel in self._parcels)
        return mine and all(each.is_here() for each in self._beside)


def _begun(coming: Sequence[Coming[object]]) -> Parcel:
    """Start passes on one device, those of one engine and dtype together."""
    together: dict[tuple[Begin, torch.dtype], list[Coming[object]]] = {}
    for each in coming:
        follow(each.stream)  # a tensor may be from another stream
        together.setdefault((each.begin, each.one.out.dtype), []).append(each)
    groups = list(together.items())
    answers = [begin([each.one for each in group]) for (begin, _), group in groups]
    parcel, number = Parcel(joined(answers)), 0
    for _, group in groups:
        for each in group:
            each.travel(parcel, number)
            number += 1
    return parcel


def joined(several: Sequence[Answers]) -> Answers:
    """Join the results of several groups of passes in one piece of memory."""
    if len(several) == 1:
        return several[0]
    # Pad every piece to a multiple of 8 bytes, because its first words are float64.
    words = [torch.nn.functional.pad(each.words, (0, each.words.numel() % 2)) for each in several]
    ends = np.cumsum([each.numel() for each in words]).tolist()
    pieces = [
        (slice(end - piece.numel(), end - piece.numel() + each.words.numel()), each.read)
        for end, piece, each in zip(ends, words, several)
    ]

    def read(fetched: np.ndarray) -> Sequence[object]:
        return [answer for place, own in pieces for answer in own(fetched[place])]

    return Answers(torch.cat(words), read)
