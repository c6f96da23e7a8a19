"""Tasks that wait for a device together, with one copy and one wait for all of them.

A task runs until it needs a tensor of the device; then the next task runs. When all tasks wait,
their tensors are copied together. Each task is a greenlet (``Walk``), a function that can pause, so
selectors and kernels need no code for this. Without the package greenlet every task waits
separately.
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
"""Function that copies tensors from devices to the host, with one copy and one wait per device."""


class Walk:
    """A task in a greenlet, which pauses when it needs a tensor. The task must not raise."""

    def __init__(self, task: Task) -> None:
        self._task, self._thread = task, greenlet.greenlet(self._run)
        self.question: torch.Tensor | None = None
        self._answer: np.ndarray | None = None

    def go_on(self, answer: np.ndarray | None = None) -> None:
        """Run until the next question, or to the end; ``question`` is then None."""
        self.question, self._answer = None, answer
        self._thread.switch()

    def fail(self, error: Exception) -> None:
        """Raise an error where the task paused, and run until the next question or the end."""
        self.question = None
        self._thread.throw(error)

    def ask(self, question: torch.Tensor) -> np.ndarray:
        """Pause, and return a device's tensor as an array on the host. The task calls this."""
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
            del self._thread.walk  # break the cycle, which would keep the task's objects alive


def can_stop() -> bool:
    """Return whether tasks can wait together: the package greenlet is installed."""
    return greenlet is not None


def current_walk() -> Walk | None:
    """Return the running ``Walk``; None outside of ``run_together``."""
    if greenlet is None:
        return None
    walk: Walk | None = getattr(greenlet.getcurrent(), "walk", None)
    return walk


def run_together(tasks: Sequence[Task], fetch_all: FetchAll) -> None:
    """Run independent tasks, and copy the tensors that they ask for to the host in rounds.

    tasks : functions that do not raise
    fetch_all : copies tensors from devices, with one copy and one wait per device
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
        except Exception as error:  # tasks report it
            for walk, _ in asking:
                walk.fail(error)
            continue
        for (walk, _), answer in zip(asking, answers):
            walk.go_on(answer)
