"""An elastic run whose workers die in mid-step: what is checked, whatever the framework.

The elastic state keeps the books: what was given and applied, and what workers owe or took along.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORKER = uuid.uuid4().hex
SIZE = 3
STEPS_A_KILL = 6
LIMIT_S = 240
DENSITY = 0.05
SHAPES = {"wide": (16, 20), "tall": (30, 6)}
NUMEL = sum(int(np.prod(shape)) for shape in SHAPES.values())


def gradients_of(rank: int, step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng([rank, step])
    return {key: draw.normal(size=shape).astype("f4") for key, shape in SHAPES.items()}


def flat(arrays: Any) -> np.ndarray:
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])


def empty_books() -> dict[str, Any]:
    zero = np.zeros(NUMEL)
    return {
        "given": zero,
        "applied": zero,
        "lost": zero,
        "owed": {},
        "off": [],
        "resets": 0,
        "sizes": [],
    }


def residual_of(residuals: Mapping[str, Any]) -> np.ndarray:
    return flat(residuals[key] for key in SHAPES) if residuals else np.zeros(NUMEL)


def note_reset(books: dict[str, Any], here: list[tuple[str, np.ndarray]]) -> dict[str, Any]:
    """After the state is synchronized: the ranks owe what the survivors among them owed."""
    owes = sum(residual for _, residual in here) / len(here)
    workers = {worker for worker, _ in here}
    expected = sum(
        (owed for worker, owed in books["owed"].items() if worker in workers), np.zeros(NUMEL)
    )
    died = sum(
        (owed for worker, owed in books["owed"].items() if worker not in workers), np.zeros(NUMEL)
    )
    off = float(np.abs(owes - expected).max())
    owed = {worker: residual / len(here) for worker, residual in here}
    sizes = [*books["sizes"], len(here)]
    changes = {
        "lost": books["lost"] + died,
        "owed": owed,
        "off": [*books["off"], off],
        "resets": books["resets"] + 1,
        "sizes": sizes,
    }
    return {**books, **changes}


def note_step(
    books: dict[str, Any],
    given: np.ndarray,
    applied: np.ndarray,
    here: list[tuple[str, np.ndarray]],
) -> dict[str, Any]:
    owed = {worker: residual / len(here) for worker, residual in here}
    return {
        **books,
        "given": books["given"] + given,
        "applied": books["applied"] + applied,
        "owed": owed,
    }


def conclude(books: dict[str, Any]) -> dict[str, Any]:
    balance = books["given"] - books["applied"] - books["lost"] - sum(books["owed"].values())
    return {
        "missing": float(np.abs(balance).max()),
        "lost": float(np.abs(books["lost"]).max()),
        "given": float(np.abs(books["given"]).max()),
        "off": books["off"],
        "sizes": books["sizes"],
    }


class Killer:
    """Kills workers of a full world in mid-step, every few steps, each rank in turn; notes it in a
    folder.

    ``done`` is to be asked on one rank and told to the others: between two ranks' questions a third
    may have died.
    """

    steps_a_commit = 1

    def __init__(self, folder: str, kills: int) -> None:
        self._folder = Path(folder)
        self._kills = kills

    @property
    def done(self) -> int:
        return len(list(self._folder.glob("kill.*")))

    def is_over(self, done: int, size: int) -> bool:
        return done == self._kills and size == SIZE

    def visit(self, done: int, rank: int, size: int, step: int) -> None:
        if (
            size == SIZE
            and step % STEPS_A_KILL == STEPS_A_KILL - 1
            and done < self._kills
            and rank == done % SIZE
        ):
            (self._folder / f"kill.{done}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Until:
    """Ends a run on a cluster when a file appears there, whatever befalls its hosts before; commits
    every third step, so that a fault takes steps back."""

    steps_a_commit = 3

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._ends_s = time.monotonic() + LIMIT_S

    @property
    def done(self) -> int:
        assert time.monotonic() < self._ends_s, f"{self._path} did not appear within {LIMIT_S} s"
        return int(self._path.exists())

    def is_over(self, done: int, size: int) -> bool:
        return bool(done)

    def visit(self, done: int, rank: int, size: int, step: int) -> None:
        """Nobody is killed."""

    def check(self, books: dict[str, Any]) -> str:
        assert max(books["off"]) < 1e-6 * books["given"], f"a reset lost what is owed: {books}"
        assert books["missing"] < 1e-5 * books["given"], f"entries are missing: {books}"
        return f"{books['sizes']} ranks, all alike; died with hosts {books['lost']:.3g}"
