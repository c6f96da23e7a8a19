"""Handing many small tensors to Horovod, and taking them back: to be timed."""

from __future__ import annotations

from typing import Callable, Protocol

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending

HANDED = 64
"""Tensors that are handed over one after the other: about as many as a model has, as Horovod's
cycles take longer the more names it knows."""


class Handing(Protocol):
    """Hands ``HANDED`` tensors of an entry each to Horovod."""

    def submit(self) -> None:
        """All of them, without waiting."""

    def collect(self) -> None:
        """All of them back; they are there."""


class Users(Protocol):
    """What programs do: by Horovod's optimizer, and its own wait.

    Attributes
    ----------
    plain : its handing over, without this package
    compressed : the same with a compressor, which leaves tensors of an entry as they are
    """

    plain: Handing
    compressed: Handing

    def sum(self, kind: str, nbytes: int) -> Callable[[], None]:
        """A sum of so many bytes a rank, from handing over to the result, without this package.

        kind : "allreduce_dense", or "allreduce_fp16" with the casts of Horovod's compression
        """


class PlainHanding:
    """By the collective that exchanges run on, as carriers are handed over here."""

    def __init__(self, collective: Collective, timeout_s: float) -> None:
        self._collective, self._timeout_s = collective, timeout_s
        self._entry = np.zeros(1)
        self._pending: list[Pending] = []

    def submit(self) -> None:
        names = (f"hvd_sparse.probe.hand.{number}" for number in range(HANDED))
        self._pending = [self._collective.allreduce(self._entry, name) for name in names]

    def collect(self) -> None:
        for each in self._pending:
            each.wait(self._timeout_s)
