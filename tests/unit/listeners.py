"""Listeners of ranks that are none, for tests of what ranks ask each other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hvd_sparse.watch.listener import Listener
from hvd_sparse.watch.peers import Endpoint

ANSWER = {
    "behind": ["a"],
    "pending": 2,
    "place": "train.py:3 (step)",
    "is_joined": False,
    "stood_s": 0,
}

PATIENCE_S = 600.0
"""Seconds for an answer, that only a hang meets."""


@contextmanager
def listening() -> Iterator[Callable[..., Endpoint]]:
    """Give a function that starts a rank's listener; close all of them at the end."""
    made = []

    def start(rank: int = 0, answer: Callable[..., object] = lambda question: ANSWER) -> Endpoint:
        made.append(Listener(answer))
        return Endpoint(rank, socket.gethostname(), (), made[-1].port, made[-1].token)

    yield start
    for listener in made:
        listener.close()
