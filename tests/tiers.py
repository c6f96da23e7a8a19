"""Selects the tests of a run.

short : the run of every commit. Of the folders that start ranks, it has the files in
    ``SHORT_ON_RANKS``, in the worlds of ``SHORT_WORLDS``; of the others, all tests. Tests that are
    marked ``full`` are left out.
slice K/N : the short run and one of N parts of the other tests, which depends on K. N consecutive
    numbers K run all tests.
full : all tests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent

RANKS = ("frontends", "launch", "network", "soak")
"""Folders whose tests start real ranks, one launch at a time, because cores are few."""
SHORT_ON_RANKS = {
    "test_ddp.py",
    "test_elastic.py",
    "test_faults.py",
    "test_methods.py",
    "test_tensorflow_training.py",
    "test_torch_input.py",
    "test_torch_training.py",
}
"""Files of the short run that start ranks: laws, exchanges, faults, checkpoints, elastic runs and
DDP, with each framework."""
SHORT_WORLDS = {(2, "gloo"), (3, "mpi")}
"""Ranks and controller of the short run's launches: an even and an odd number, Gloo and MPI."""


def is_short(item: pytest.Item) -> bool:
    if item.get_closest_marker("full") is not None:
        return False
    if folder_of(item.path) in RANKS and item.path.name not in SHORT_ON_RANKS:
        return False
    world = world_of(item)
    return world is None or world in SHORT_WORLDS


def folder_of(path: Path) -> str:
    inside = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return inside[0] if len(inside) > 1 or (path.is_dir() and inside) else ""


def world_of(item: pytest.Item) -> tuple[int, str] | None:
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    for value in parameters.values():
        match value:
            case (int() as ranks, "mpi" | "gloo" | "torchrun" as controller, *_):
                return ranks, controller
    return None


def unit_of(item: pytest.Item) -> str:
    """Return the name of a unit of tests that run together because they share launches. In files
    that start ranks, a unit is the tests of one world; elsewhere, it is a test function."""
    file, _, rest = item.nodeid.partition("::")
    world = world_of(item)
    if world is not None:
        return f"{file}::{world[0]}-{world[1]}"
    return file if folder_of(item.path) in RANKS else f"{file}::{rest.partition('[')[0]}"


class Slice:
    """The K-th of N parts of the tests that are not in the short run. A hash of its unit's name
    determines the part of a test."""

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"(\d+)/([1-9]\d*)", text)
        if found is None:
            raise pytest.UsageError(f"--slice {text}: give K/N, for example 3/10")
        self.parts = int(found[2])
        self.part = int(found[1]) % self.parts

    def __contains__(self, item: pytest.Item) -> bool:
        digest = hashlib.sha256(unit_of(item).encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.parts == self.part

    def __str__(self) -> str:
        return f"slice {self.part} of {self.parts} of the full run"


def select(
    items: Sequence[pytest.Item], part: Slice | None
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    taken, left = [], []
    for item in items:
        is_taken = is_short(item) or (part is not None and item in part)
        (taken if is_taken else left).append(item)
    return taken, left
