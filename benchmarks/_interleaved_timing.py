"""Interleaved timing: in every round each contestant runs once, in another order, so that drift
affects all alike."""

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
    """One way of doing a step; a slow one takes part in every ``every``-th round only."""

    name: str
    run: Callable[[Any], Any]
    every: int = 1


class Times:
    """The seconds of every contestant by round; NaN where a contestant sat a round out."""

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._seconds = {name: np.full(rounds, np.nan) for name in names}

    def note(self, name: str, number: int, seconds: float) -> None:
        self._seconds[name][number] = seconds

    def milliseconds(self, name: str) -> Quartiles:
        return Quartiles.of(1e3 * self._seconds[name])

    def ratio(self, name: str, *others: str) -> Quartiles:
        """Return how many times longer it took than the slowest of the others, round by round."""
        slowest = np.max([self._seconds[other] for other in others], axis=0)
        return Quartiles.of(self._seconds[name] / slowest)


def race(
    contestants: Sequence[Contestant],
    feed: Callable[[int], Any],
    *,
    warm: int,
    rounds: int,
    seed: int = 0,
    advance: Callable[[], Any] = lambda: None,
) -> Times:
    """Run all for ``warm`` untimed rounds and ``rounds`` timed ones; ``advance`` follows each."""
    rng = np.random.default_rng(seed)
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
            advance()
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
