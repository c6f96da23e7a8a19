"""Answers of a device that the host does not have yet: those of a bucket come by one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch

from hvd_sparse.core.kernels.torch.vector import Copy, fetch

Answer = TypeVar("Answer", covariant=True)


class Coming(Generic[Answer]):
    """An answer that lies on a device; in all else it is the answer: reading it waits.

    Parameters
    ----------
    words : the answer there, int32
    read : makes it of the words, once they are on the host
    """

    def __init__(self, words: torch.Tensor, read: Callable[[np.ndarray], Answer]) -> None:
        self.words = words
        self._read = read
        self._delivery: tuple[Copy, slice] | None = None
        self._answer: Answer | None = None

    def travel(self, copy: Copy, place: slice) -> None:
        """Come in a copy of several answers, at this place among its words."""
        self._delivery = copy, place

    def result(self) -> Answer:
        """Return the answer, and wait for the device if it is not here."""
        if self._answer is None:
            if self._delivery is None:
                fetched = fetch(self.words)
            else:
                copy, place = self._delivery
                fetched = copy.array()[place]
            self._answer = self._read(fetched)
        return self._answer

    def __getattr__(self, name: str) -> object:
        return getattr(self.result(), name)


class Delivery:
    """Answers on their way to the host, by one copy a device; nothing has waited for them.

    Parameters
    ----------
    answers : of one device or of several
    """

    def __init__(self, answers: Sequence[Coming[object]]) -> None:
        by_device: dict[torch.device, list[Coming[object]]] = {}
        for answer in answers:
            by_device.setdefault(answer.words.device, []).append(answer)
        self._copies = [_copied(each) for each in by_device.values()]

    def is_here(self) -> bool:
        """Tell whether the copies are done, so that reading an answer does not wait."""
        return all(copy.is_here() for copy in self._copies)


def _copied(answers: Sequence[Coming[object]]) -> Copy:
    # Every piece begins at a multiple of 8 bytes: its first words are float64.
    words = [torch.nn.functional.pad(each.words, (0, each.words.numel() % 2)) for each in answers]
    copy, start = Copy(torch.cat(words)), 0
    for answer, piece in zip(answers, words):
        answer.travel(copy, slice(start, start + answer.words.numel()))
        start += piece.numel()
    return copy
