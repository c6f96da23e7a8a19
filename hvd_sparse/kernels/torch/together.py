"""Walks that ask a device at the same time: one copy and one wait for all of them.

A walk stops where it needs an answer, and the next one runs up to where it does.  Once all have
stopped their questions travel together.  Walks are greenlets, functions of one thread that can stop
in the middle: so selectors and kernels are written as if each were alone.  Without the package
greenlet every question waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

try:
    import greenlet
except ImportError:
    greenlet = None

Task = Callable[[], None]
FetchAll = Callable[[Sequence[torch.Tensor]], Sequence[np.ndarray]]
"""Brings several tensors of devices to the host, by one copy and one wait a device."""


class Walk:
    """One of several walks; it stops where it asks. Its task raises nothing of its own."""

    def __init__(self, task: Task) -> None:
        self._task, self._thread = task, greenlet.greenlet(self._run)
        self.question: torch.Tensor | None = None
        self._answer: np.ndarray | None = None

    def go_on(self, answer: np.ndarray | None = None) -> None:
        """Run up to the next question, or to the end, where ``question`` is None."""
        self.question, self._answer = None, answer
        self._thread.switch()

    def fail(self, error: Exception) -> None:
        """Raise an error where the walk has asked, and run up to the next question or the end."""
        self.question = None
        self._thread.throw(error)

    def ask(self, question: torch.Tensor) -> np.ndarray:
        """Stop, and return a device's tensor as an array of the host.  Called by the task."""
        self.question = question
        self._thread.parent.switch()
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer

    def _run(self) -> None:
        self._thread.walk = self
        try:
            self._task()
        finally:
            del self._thread.walk  # else both would stay, with all that the task holds


def can_stop() -> bool:
    """Tell whether walks can wait together: the package greenlet is there."""
    return greenlet is not None


def current_walk() -> Walk | None:
    """Return the walk that is running; None outside of walks."""
    if greenlet is None:
        return None
    walk: Walk | None = getattr(greenlet.getcurrent(), "walk", None)
    return walk


def run_together(tasks: Sequence[Task], fetch_all: FetchAll) -> None:
    """Run independent tasks, and bring the tensors that they ask for to the host in rounds.

    tasks : raise nothing of their own
    fetch_all : fetches tensors of devices, with one copy and one wait a device
    """
    if greenlet is None or len(tasks) == 1:
        for task in tasks:
            task()
        return
    walks = [Walk(task) for task in tasks]
    for walk in walks:
        walk.go_on()
    while True:
        asking = [(walk, walk.question) for walk in walks if walk.question is not None]
        if not asking:
            return
        try:
            answers = fetch_all([question for _, question in asking])
        except Exception as error:  # each task says for itself what that means
            for walk, _ in asking:
                walk.fail(error)
            continue
        for (walk, _), answer in zip(asking, answers):
            walk.go_on(answer)
