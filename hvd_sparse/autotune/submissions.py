"""Submissions of many small tensors to Horovod, for timing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending

SUBMITTED = 64
"""Tensors that are submitted one after the other: about as many as a model has, as Horovod's cycles
take longer the more names it knows."""


class Submission(Protocol):
    """A way to submit ``SUBMITTED`` tensors of one entry each to Horovod."""

    def submit(self) -> None:
        """Submit all of them, without waiting."""

    def collect(self) -> None:
        """Collect the results, which are there."""


class Users(Protocol):
    """The submissions and sums of a program, by Horovod's optimizer and its own wait."""

    @property
    def plain(self) -> Submission:
        """Return the submission without this package."""

    @property
    def compressed(self) -> Submission:
        """Return the submission with a compressor, which leaves tensors of one entry as they
        are."""

    def sum(self, kind: str, nbytes: int) -> Callable[[], None]:
        """Return a sum of so many bytes a rank, from handing over to the result, without this
        package.

        Parameters
        ----------
        kind : "allreduce_dense", or "allreduce_fp16" with the casts of Horovod's compression
        nbytes : bytes of the gradient
        """


class PlainSubmission:
    """Submission by the collective that exchanges run on, as carriers are submitted.

    Parameters
    ----------
    collective : of the ranks
    timeout_s : seconds that one result may take
    """

    def __init__(self, collective: Collective, timeout_s: float) -> None:
        self._collective, self._timeout_s = collective, timeout_s
        self._entry = np.zeros(1)
        self._pending: list[Pending] = []

    def submit(self) -> None:
        """Submit all tensors, without waiting."""
        names = (f"hvd_sparse.probe.hand.{number}" for number in range(SUBMITTED))
        self._pending = [self._collective.allreduce(self._entry, name) for name in names]

    def collect(self) -> None:
        """Wait for the results."""
        for each in self._pending:
            each.wait(self._timeout_s)
