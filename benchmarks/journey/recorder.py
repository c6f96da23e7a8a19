"""Records, by a profile function, which functions of a package are called, and counts the calls."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call of a function of the package."""

    file: str
    function: str
    caller: int  # its position in the same list; -1 if no function of the package called
    depth: int  # number of nested calls, this one included


@dataclass(frozen=True)
class Counts:
    """Numbers of a recorded list of calls."""

    calls: int
    files: int
    changes: int  # how often a call is in another file than the call before
    depth: int

    @classmethod
    def of(cls, way: Sequence[Call]) -> Counts:
        return cls(
            calls=len(way),
            files=len({call.file for call in way}),
            changes=sum(a.file != b.file for a, b in itertools.pairwise(way)),
            depth=max((call.depth for call in way), default=0),
        )


@contextmanager
def recording(package: Path) -> Iterator[list[Call]]:
    """Yield a list, to which this thread's calls of the package's Python functions are appended."""
    folder, calls = str(package) + os.sep, []  # type: tuple[str, list[Call]]
    opened: list[tuple[FrameType, int]] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(folder):
                caller = opened[-1][1] if opened else -1
                file = code.co_filename.removeprefix(folder)
                opened.append((frame, len(calls)))
                calls.append(Call(file, code.co_qualname, caller, len(opened)))
        elif event == "return" and opened and opened[-1][0] is frame:
            opened.pop()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def tree(way: Sequence[Call]) -> list[str]:
    """Return lines that show which functions call which; calls inside one file are on one line."""
    roots: list[_Node] = []
    nodes: list[_Node] = []
    for call in way:
        parent = nodes[call.caller] if call.caller >= 0 else None
        if parent is None or parent.file != call.file:
            siblings = roots if parent is None else parent.children
            node = next((each for each in siblings if each.file == call.file), None)
            if node is None:
                node = _Node(call.file)
                siblings.append(node)
        else:
            node = parent
        node.functions[call.function] = node.functions.get(call.function, 0) + 1
        nodes.append(node)
    return [line for root in roots for line in root.lines("", "", "")]


class _Node:
    def __init__(self, file: str) -> None:
        self.file = file
        self.functions: dict[str, int] = {}
        self.children: list[_Node] = []

    def lines(self, indent: str, branch: str, below: str) -> Iterator[str]:
        called = ", ".join(
            name if times == 1 else f"{name} x {times}" for name, times in self.functions.items()
        )
        yield f"{indent}{branch}{self.file}: {called}"
        for child in self.children:
            is_last = child is self.children[-1]
            yield from child.lines(
                indent + below, "└─ " if is_last else "├─ ", "   " if is_last else "│  "
            )
