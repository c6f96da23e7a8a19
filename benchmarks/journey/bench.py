"""Counts and draws the calls for one tensor in a step: ``python -m benchmarks journey``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._page import made_with, markdown_table, write
from benchmarks._ranks import launch
from benchmarks.journey.recorder import Call, Counts, tree
from benchmarks.journey.ways import OPTIONS, RECORDED, WARM, WIDTH

RANKS = 2
LIMIT_S = 2400
WIDEST = 118
"""Longest line of the drawing, in characters."""
ALONE = "compressed, alone in its step"


@dataclass(frozen=True)
class Goal:
    """Largest number of calls, and of files, for one tensor."""

    calls: int
    files: int | None = None

    def __str__(self) -> str:
        return f"≤ {self.calls} calls" + (f" in ≤ {self.files} files" if self.files else "")

    def is_met(self, counts: Counts) -> bool:
        return counts.calls <= self.calls and (self.files is None or counts.files <= self.files)


GOALS = {"PyTorch": Goal(60, 15), "TensorFlow": Goal(60, 18)}
"""Goals for a compressed tensor that is alone in its step."""
GOAL_OF_THIRTY = Goal(8)
"""Goal for the mean of thirty compressed tensors in one step."""


@dataclass(frozen=True)
class Line:
    """One row of the table: calls of one part of a typical step, or of several parts."""

    framework: str
    what: str
    part: str
    counts: Counts
    fewest: int
    most: int
    way: Sequence[Call] = ()
    goal: Goal | None = None

    def cells(self) -> list[Any]:
        name = f"{self.framework}, {self.what}"
        return [name, self.part, *asdict(self.counts).values(), f"{self.fewest} to {self.most}"]

    def verdict(self) -> list[str]:
        assert self.goal is not None
        counts = f"{self.counts.calls} calls in {self.counts.files} files"
        verdict = "met" if self.goal.is_met(self.counts) else "missed"
        name = f"{self.framework}, {self.what}: {self.part}"
        return [name, counts, str(self.goal), verdict]


def add_options(parser: argparse.ArgumentParser) -> None:
    choices = ("torch", "tensorflow")
    words = "frameworks (default: all)"
    parser.add_argument("--frameworks", nargs="+", default=choices, choices=choices, help=words)


def run(options: argparse.Namespace) -> int:
    lines: list[Line] = []
    for framework in options.frameworks:
        found = launch(f"benchmarks.journey.{framework}_worker", RANKS, limit_s=LIMIT_S)[0]
        lines += lines_of_torch(found) if framework == "torch" else lines_of_tensorflow(found)
    drawn = [x for x in lines if "thirty" not in x.what and x.part not in ("the pair", "both")]
    header = ["tensor", "part", "calls", "files", "changes of file", "depth", "fewest to most"]
    judged = [line for line in lines if line.goal is not None]
    shown = {
        "goals": markdown_table(["", "counted", "goal", ""], [x.verdict() for x in judged]),
        "table": markdown_table(header, [line.cells() for line in lines]),
        "drawings": [(f"{x.framework}, {x.what}: {x.part}", _drawn(x)) for x in drawn],
        **OPTIONS,
    }
    head = {"made_with": made_with(), "width": WIDTH, "warm": WARM, "recorded": RECORDED}
    lists = {
        "lines": [{**_named(x), **asdict(x.counts), "goal": str(x.goal or "")} for x in lines],
        "ways": [
            {**_named(x), "way": [[call.file, call.function, call.caller] for call in x.way]}
            for x in lines
            if x.way and x.part not in ("the pair", "both")
        ],
    }
    print(write(options.output / "journey", "journey.md", head, lists, **shown))
    return 0


def _named(line: Line) -> dict[str, Any]:
    told = {"framework": line.framework, "what": line.what, "part": line.part}
    return {**told, "fewest": line.fewest, "most": line.most}


def lines_of_torch(found: dict[str, dict[str, Any]]) -> Iterator[Line]:
    """Yield the table's rows from the results of ``torch_worker``: for a tensor that is alone in
    its step, for thirty tensors in one step, and for a dense tensor among these."""
    compressed = [name for name in found if name.startswith("among.") and "bias" not in name]
    places = {compressed[at]: word for word, at in (("first", 0), ("middle", 14), ("last", -1))}
    pairs = []
    for name, methods in found.items():
        if name.startswith("alone."):
            yield from _lines("PyTorch", ALONE, methods, "the pair", GOALS["PyTorch"])
        elif name.endswith(".bias"):
            yield from _lines("PyTorch", "dense, among others", methods, "the pair")
        else:
            what = f"compressed, {places.get(name)} of thirty in a step"
            lines = list(_lines("PyTorch", what, methods, "the pair"))
            pairs.append(lines[-1])
            yield from lines if name in places else ()
    calls = [each.counts.calls for each in pairs]
    files = {call.file for each in pairs for call in each.way}
    mean = Counts(
        calls=round(sum(calls) / len(calls)),
        files=len(files),
        changes=round(sum(each.counts.changes for each in pairs) / len(pairs)),
        depth=max(each.counts.depth for each in pairs),
    )
    what, spread = "compressed, mean of thirty in a step", (min(calls), max(calls))
    yield Line("PyTorch", what, "the pair", mean, *spread, goal=GOAL_OF_THIRTY)


def lines_of_tensorflow(found: dict[str, Any]) -> Iterator[Line]:
    yield from _lines("TensorFlow", ALONE, found, "both", GOALS["TensorFlow"])


def _lines(
    framework: str, what: str, parts: dict[str, Any], together: str, goal: Goal | None = None
) -> Iterator[Line]:
    whole: list[Call] = []
    for part, told in parts.items():
        way = [Call(*call) for call in told["way"]]
        spread = told["fewest"], told["most"]
        yield Line(framework, what, part, Counts.of(way), *spread, way)
        shift = len(whole)
        whole += [
            Call(c.file, c.function, c.caller + shift if c.caller >= 0 else -1, c.depth)
            for c in way
        ]
    fewest, most = (sum(told[end] for told in parts.values()) for end in ("fewest", "most"))
    yield Line(framework, what, together, Counts.of(whole), fewest, most, whole, goal)


def _drawn(line: Line) -> str:
    """Return the drawing of who calls whom, with long lines wrapped inside their branches."""
    lines = []
    for each in tree(line.way):
        stem = each[: len(each) - len(each.lstrip("│├└─ "))]
        below = stem.replace("├─", "│ ").replace("└─", "  ") + "      "
        lines += textwrap.wrap(each, WIDEST, subsequent_indent=below, break_long_words=False)
    return "\n".join(lines)
