"""Interleaved timing. In every round each contestant runs once, each time in another order, so that
changes in the speed of the machine affect all of them alike. Slow ones may skip rounds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._page import Quartiles


@dataclass(frozen=True)
class Contestant:
    """One way of doing a step, which takes part in every ``every``-th round."""

    name: str
    run: Callable[[Any], Any]
    every: int = 1


class Times:
    """Seconds of every contestant in every round; NaN if it did not take part in the round."""

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._seconds = {name: np.full(rounds, np.nan) for name in names}

    def note(self, name: str, number: int, seconds: float) -> None:
        self._seconds[name][number] = seconds

    def milliseconds(self, name: str) -> Quartiles:
        return Quartiles.of(1e3 * self._seconds[name])

    def ratio(self, name: str, *others: str) -> Quartiles:
        """Return quartiles over the rounds of the time of ``name``, divided by the longest time of
        ``others`` in the round."""
        slowest = np.max([self._seconds[other] for other in others], axis=0)
        return Quartiles.of(self._seconds[name] / slowest)


def race(
    contestants: Sequence[Contestant],
    feed: Callable[[int], Any],
    *,
    warm: int,
    rounds: int,
) -> Times:
    """Return the times of all contestants in ``rounds`` rounds, after ``warm`` untimed rounds.
    ``feed`` gives each round's argument."""
    rng = np.random.default_rng(0)
    times = Times([contestant.name for contestant in contestants], rounds)
    with _collector_off():
        for number in range(-warm, rounds):
            argument = feed(number + warm)
            for position in rng.permutation(len(contestants)):
                contestant = contestants[position]
                if number % contestant.every or (
                    contestant.every > 1 and number < -2 * contestant.every
                ):
                    continue
                seconds = _time(contestant, argument)
                if number >= 0:
                    times.note(contestant.name, number, seconds)
    return times


def _time(contestant: Contestant, argument: Any) -> float:
    start = time.perf_counter()
    contestant.run(argument)
    return time.perf_counter() - start


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python's garbage collector from running inside a measurement."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
