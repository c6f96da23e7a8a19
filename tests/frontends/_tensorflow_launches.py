"""Launches that tests share: each is made once, when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from harness import Outcome, launch

World = tuple[int, str]
"""How many ranks, under which controller."""


WORKER = "frontends/tensorflow_laws.py"


class Launches(dict[World, Outcome]):
    """Outcomes of a launch by world; ``cases`` are those that the worker runs there."""

    def __init__(self, cases: Mapping[World, Iterable[str]]) -> None:
        super().__init__()
        self._cases = {world: list(names) for world, names in cases.items()}

    def __missing__(self, world: World) -> Outcome:
        self[world] = launch_cases(world, self._cases[world])
        return self[world]

    def check(self, world: World) -> None:
        """The launch ended well, and has run its cases and no others."""
        for result in self[world].check():
            assert list(result) == self._cases[world]


def launch_cases(world: World, cases: Iterable[str]) -> Outcome:
    ranks, controller = world
    return launch(WORKER, ranks, controller, str(ranks), controller, *cases)


def in_worlds(worlds: Iterable[World], cases: Iterable[str]) -> list[Any]:
    """Parameters ``world, case`` of a test, world by world."""
    names = list(cases)
    return [
        pytest.param(world, case, id=f"{world[0]}-{world[1]}-{case}".rstrip("-"))
        for world in worlds
        for case in names
    ]
