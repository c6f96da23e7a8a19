"""The lines of the table: which ways are counted together, and what is wanted of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.journey.recorder import Call, Counts

PLACES = ("first", "middle", "last")


@dataclass(frozen=True)
class Goal:
    """The most that a way may come to.

    Attributes
    ----------
    files : None where nobody asks
    """

    calls: int
    files: int | None = None

    def __str__(self) -> str:
        return f"≤ {self.calls} calls" + (f" in ≤ {self.files} files" if self.files else "")

    def is_met(self, counts: Counts) -> bool:
        return counts.calls <= self.calls and (self.files is None or counts.files <= self.files)


@dataclass(frozen=True)
class Line:
    """A way, or several that follow each other.

    Attributes
    ----------
    framework, what, part : where; which tensor; which calls of its way
    way : the calls of the step that stands for all
    fewest, most : calls of any recorded step
    """

    framework: str
    what: str
    part: str
    way: Sequence[Call]
    fewest: int
    most: int
    goal: Goal | None = None

    @property
    def counts(self) -> Counts:
        return Counts.of(self.way)

    @property
    def is_met(self) -> bool | None:
        return None if self.goal is None else self.goal.is_met(self.counts)

    def describe(self) -> dict[str, Any]:
        """JSON-able, without the way."""
        named = {"framework": self.framework, "what": self.what, "part": self.part}
        spread = {"fewest": self.fewest, "most": self.most}
        goal = None if self.goal is None else str(self.goal)
        return {**named, **self.counts.to_dict(), **spread, "goal": goal, "is_met": self.is_met}


def lines_of_torch(found: dict[str, dict[str, Any]]) -> Iterator[Line]:
    """Yield those of what ``torch_worker`` reports.

    Its tensors come in this order: the one that is alone in its step, then the first, middle and
    last compressed one of another model, with the dense one somewhere between.
    """
    places = iter(PLACES)
    for name, methods in found.items():
        if name.startswith("alone."):
            what, goal = "compressed, alone in its step", Goal(120, 22)
        elif name.endswith(".bias"):
            what, goal = "dense, among others", Goal(25)
        else:
            what, goal = f"compressed, {next(places)} of three in a step", None
        yield from _lines("PyTorch", what, methods, "the pair", goal)


def lines_of_tensorflow(found: dict[str, Any]) -> Iterator[Line]:
    """Yield those of what ``tensorflow_worker`` reports."""
    yield from _lines("TensorFlow", "compressed, alone in its step", found, "both", Goal(120, 26))


def _lines(
    framework: str, what: str, parts: dict[str, Any], together: str, goal: Goal | None
) -> Iterator[Line]:
    whole: list[Call] = []
    for part, told in parts.items():
        way = [Call(*call) for call in told["way"]]
        yield Line(framework, what, part, way, told["fewest"], told["most"])
        shift = len(whole)
        whole += [
            Call(c.file, c.function, c.caller + shift if c.caller >= 0 else -1, c.depth)
            for c in way
        ]
    fewest, most = (sum(told[end] for told in parts.values()) for end in ("fewest", "most"))
    yield Line(framework, what, together, whole, fewest, most, goal)
