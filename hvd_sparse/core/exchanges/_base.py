"""What an exchange is."""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar, Protocol

import numpy as np

from ..collective import Request
from ..message import Message

Conversation = Generator[Request, np.ndarray, "list[Message]"]
"""Yields a collective that it wants, is sent that collective's result, returns the messages to sum."""


class Exchange(Protocol):
    """An algorithm made of collectives, as a generator: whoever drives it decides how to wait.

    The same code so runs over threads, mpi4py, Horovod's asynchronous handles and TensorFlow graphs.
    All ranks yield the same kinds of requests in the same order, whatever they selected.

    phases : names of the requests that it yields, in order; a graph is built from them
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]
    phases: ClassVar[tuple[str, ...]]

    def run(self, message: np.ndarray, rank: int, world_size: int) -> Conversation:
        """Exchange this rank's message, uint8; return the messages of all ranks in rank order."""
