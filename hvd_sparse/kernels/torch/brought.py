"""Statistics of the whole vector, which a pass brings along with the entries that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from hvd_sparse.kernels.contract import NOTHING, Aim, Brought, Taking
from hvd_sparse.kernels.torch import statistics
from hvd_sparse.kernels.torch.coming import Answers, Pass, joined

PENDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "moments": statistics.pending_moments,
    "mean_and_std": statistics.pending_mean_and_std,
    "tail": statistics.pending_tail,
}
"""What finds each of ``Brought`` and leaves it on the device, as float64."""
NUMBERS = {"moments": 3, "mean_and_std": 2, "tail": 5}
"""How many numbers each is."""


def pending(total: torch.Tensor, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the numbers of what is asked for, one after the other, on the device."""
    return [number for name in names for number in PENDING[name](total).unbind()]


def read(numbers: Sequence[float], names: Sequence[str], numel: int) -> Brought:
    """Return what is asked for, once its numbers are on the host."""
    brought, rest = NOTHING, list(numbers)
    for name in names:
        own, rest = np.array(rest[: NUMBERS[name]]), rest[NUMBERS[name] :]
        if name == "moments":
            brought = brought._replace(moments=statistics.moments_in(own, numel))
        elif name == "mean_and_std":
            brought = brought._replace(mean_and_std=statistics.mean_and_std_in(own, numel))
        else:
            brought = brought._replace(tail=statistics.tail_in(own, numel))
    return brought


def brought_beside(passes: Sequence[Pass], own: str) -> Answers | None:
    """Return what passes are to bring that their engine's launches do not find, by plain
    operations.

    Parameters
    ----------
    passes : not begun yet
    own : what the launches find

    Returns
    -------
    Answers
        ``Brought`` for every pass; None where no pass asks for more.
    """
    asked = [_asked(one.aim, own) for one in passes]
    if not any(asked):
        return None
    numbers = [
        number
        for one, names in zip(passes, asked)
        if names
        for number in pending(one.residual + one.gradient, names)
    ]

    def read_all(words: np.ndarray) -> list[Brought]:
        rest, found = words.view(np.float64).tolist(), []
        for one, names in zip(passes, asked):
            count = sum(NUMBERS[name] for name in names)
            found.append(read(rest[:count], names, one.out.numel()))
            rest = rest[count:]
        return found

    return Answers(torch.stack(numbers).view(torch.int32), read_all)


def with_brought(answers: Answers, beside: Answers | None) -> Answers:
    """Return the answers of passes with what was found beside them."""
    if beside is None:
        return answers
    both = joined([answers, beside])

    def read_both(words: np.ndarray) -> list[object]:
        found = list(both.read(words))
        half = len(found) // 2
        return [_joined(one, more) for one, more in zip(found[:half], found[half:])]

    return Answers(both.words, read_both)


def _asked(aim: Aim | None, own: str) -> tuple[str, ...]:
    return () if aim is None else tuple(name for name in aim.brings if name != own)


def _joined(one: object, more: object) -> object:
    if not isinstance(one, Taking) or not isinstance(more, Brought):
        return one
    moments = one.brought.moments
    return one._replace(brought=more if moments is None else more._replace(moments=moments))
