"""Timing several ways side by side: in every round each runs once, in another order, so that drift
hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Contestant:
    """One way of doing a step.

    Attributes
    ----------
    name : unique in its race
    run : what is timed; gets what the race's ``feed`` makes for the round, the same for all
    before : not timed, before every run
    every : takes part in every so manieth round only, and twice before it counts; for the slow
    """

    name: str
    run: Callable[[Any], Any]
    before: Callable[[], None] | None = None
    every: int = 1


@dataclass(frozen=True)
class Quartiles:
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, samples: np.ndarray) -> Quartiles:
        return cls(*np.percentile(samples[np.isfinite(samples)], [25, 50, 75]).tolist())


class Times:
    """Seconds by name and round; NaN where a contestant sat a round out."""

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._seconds = {name: np.full(rounds, np.nan) for name in names}

    def note(self, name: str, number: int, seconds: float) -> None:
        self._seconds[name][number] = seconds

    def milliseconds(self, name: str) -> Quartiles:
        return Quartiles.of(1e3 * self._seconds[name])

    def ratio(self, name: str, *others: str) -> Quartiles:
        """How many times longer than the others, the slowest of them, round by round."""
        slowest = np.max([self._seconds[other] for other in others], axis=0)
        return Quartiles.of(self._seconds[name] / slowest)

    def rounds(self, name: str) -> int:
        return int(np.isfinite(self._seconds[name]).sum())


def race(
    contestants: Sequence[Contestant],
    feed: Callable[[int], Any],
    *,
    warm: int,
    rounds: int,
    seed: int = 0,
    advance: Callable[[], Any] = lambda: None,
) -> Times:
    """Run all of them ``warm`` rounds without looking, then ``rounds`` rounds; ``advance`` is
    called after each round."""
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
    if contestant.before is not None:
        contestant.before()
    start = time.perf_counter()
    contestant.run(argument)
    return time.perf_counter() - start


@contextmanager
def _collector_off() -> Iterator[None]:
    """Python's garbage collector runs when it likes: not inside a measurement."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
