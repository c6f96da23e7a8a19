"""Lines of ``bench select``: what each measures, and its goal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._interleaved_timing import Quartiles


@dataclass(frozen=True)
class Goal:
    """A bound for a ratio: never more than, or at least."""

    limit: float
    is_most: bool

    def is_met(self, value: float) -> bool:
        """Tell whether the goal is met; None where there is no goal."""
        return value <= self.limit if self.is_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.is_most else '≥'} {self.limit:g}"


def at_most(limit: float) -> Goal:
    return Goal(limit, is_most=True)


def at_least(limit: float) -> Goal:
    return Goal(limit, is_most=False)


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes
    ----------
    section : rows of one section stand together and share a floor
    what : who did the work
    entries, density : of the section's data
    milliseconds : of a step, over the rounds
    times_floor : how many floors a step took, round by round; None for the floor itself
    versus : what the goal is about, where that is not ``times_floor``: how many times longer than
        ours, or faster than one
    goal : for the median of ``versus``, or of ``times_floor``
    rounds : how many were measured
    """

    section: str
    what: str
    entries: int
    density: float | None
    milliseconds: Quartiles
    times_floor: Quartiles | None = None
    versus: Quartiles | None = None
    goal: Goal | None = None
    rounds: int = 0

    @property
    def is_met(self) -> bool | None:
        """None where there is no goal."""
        judged = self.versus or self.times_floor
        return None if self.goal is None or judged is None else self.goal.is_met(judged.median)

    def describe(self) -> dict[str, Any]:
        """Return all of it, JSON-able."""
        return {
            **asdict(self),
            "goal": None if self.goal is None else str(self.goal),
            "is_met": self.is_met,
        }


@dataclass(frozen=True)
class Scale:
    """The extent of a measurement.

    Attributes
    ----------
    large, small : entries of the two vectors with goals
    width : of ResNet-50; 64 is the real one
    sizes : entries of the other vectors of the picture
    rounds : of the large vector; the others take as long, within bounds
    warm : rounds before, in which thresholds settle
    training_steps : of the real trainings
    models : that are trained
    """

    large: int
    small: int
    width: int
    sizes: tuple[int, ...]
    rounds: int
    warm: int
    training_steps: int
    models: tuple[str, ...]

    def rounds_of(self, entries: int) -> int:
        return min(8 * self.rounds, max(-(-self.rounds // 4), self.rounds * self.large // entries))

    def every(self, entries: int) -> int:
        """Return the number of rounds of which the slow contestants run one: they run in four
        rounds, or in more where those are quick."""
        return max(2, min(8, self.rounds_of(entries) // 4)) if entries >= 1_000_000 else 1


FULL = Scale(
    large=25_000_000,
    small=1_000_000,
    width=64,
    sizes=(10_000, 100_000, 10_000_000, 100_000_000),
    rounds=32,
    warm=40,
    training_steps=300,
    models=("cnn", "lstm", "transformer"),
)
QUICK = Scale(
    large=40_000,
    small=10_000,
    width=1,
    sizes=(2_000, 100_000),
    rounds=2,
    warm=2,
    training_steps=4,
    models=("cnn",),
)

DENSITIES = (0.0001, 0.001, 0.01, 0.05)
OURS = {
    ("large", 0.0001): at_most(1.3),
    ("large", 0.001): at_most(1.3),
    ("large", 0.01): at_most(1.3),
    ("large", 0.05): at_most(2.5),
    ("small", 0.001): at_most(2),
    ("small", 0.01): at_most(2),
}
ROLLBACK = {("large", 0.001): at_most(1.6), ("large", 0.01): at_most(1.6)}
PEERS = {
    "DGC, sampled threshold": at_least(10),
    "Gaussian-k": at_least(15),
    "torch.topk": at_least(30),
}
NETWORK = {False: at_most(1.5), True: at_most(3)}
"""Of a warm and of a cold threshold."""
RECEIVING = at_most(1.5)
TWO_THREADS = at_least(1.7)
ONE_PASS = 0.97
"""Part of a training's steps that one pass is to be enough for."""
