"""Launches that tests share: each is made once, when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from harness import Outcome, launch

World = tuple[int, str]
"""How many ranks, under which controller."""


class Launches(dict[World, Outcome]):
    """Outcomes of a worker by world.

    Parameters
    ----------
    worker : name of the script
    arguments : by world, what it is told after the number of ranks and the controller
    """

    def __init__(self, worker: str, arguments: Mapping[World, Iterable[str]]) -> None:
        super().__init__()
        self._worker = worker
        self._arguments = arguments

    def __missing__(self, world: World) -> Outcome:
        ranks, controller = world
        arguments = (str(ranks), controller, *self._arguments.get(world, ()))
        self[world] = launch(f"frontends/{self._worker}.py", ranks, controller, *arguments)
        return self[world]


def in_worlds(worlds: Iterable[World], cases: Iterable[str]) -> list[Any]:
    """Parameters ``world, case`` of a test, world by world."""
    names = list(cases)
    return [
        pytest.param(world, case, id=f"{world[0]}-{world[1]}-{case}".rstrip("-"))
        for world in worlds
        for case in names
    ]
