"""Checks of an elastic run whose workers die during a step, for all frameworks.

The elastic state contains the accounts: the gradients, the applied entries, the residuals of the
workers, and the residuals of workers that died.
"""

import os
import signal
import time
import uuid
from pathlib import Path

import numpy as np

WORKER = uuid.uuid4().hex
SIZE = 3
STEPS_A_KILL = 6
LIMIT_S = 1200
DENSITY = 0.05
SHAPES = {"wide": (16, 20), "tall": (30, 6)}
NUMEL = sum(int(np.prod(shape)) for shape in SHAPES.values())


def gradients_of(rank, step):
    draw = np.random.default_rng([rank, step])
    return {key: draw.normal(size=shape).astype("f4") for key, shape in SHAPES.items()}


def flat(arrays):
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in arrays])


def empty_books():
    zero = np.zeros(NUMEL)
    return {"given": zero, "applied": zero, "lost": zero, "owed": {}, "off": [], "sizes": []}


def residual_of(residuals):
    return flat(residuals[key] for key in SHAPES) if residuals else np.zeros(NUMEL)


def note_reset(books, here):
    """Return the accounts after the state is synchronized. ``off`` gets the difference between the
    sum of the new residuals and that of the surviving workers' residuals."""
    owed = {worker: residual / len(here) for worker, residual in here}
    kept, died = np.zeros(NUMEL), np.zeros(NUMEL)
    for worker, owed_before in books["owed"].items():
        where = kept if worker in owed else died
        where += owed_before
    off = float(np.abs(sum(owed.values()) - kept).max())
    return {
        **books,
        "lost": books["lost"] + died,
        "owed": owed,
        "off": [*books["off"], off],
        "sizes": [*books["sizes"], len(here)],
    }


def note_step(books, given, applied, here):
    owed = {worker: residual / len(here) for worker, residual in here}
    return {
        **books,
        "given": books["given"] + given,
        "applied": books["applied"] + applied,
        "owed": owed,
    }


def conclude(books):
    balance = books["given"] - books["applied"] - books["lost"] - sum(books["owed"].values())
    return {
        "missing": float(np.abs(balance).max()),
        "lost": float(np.abs(books["lost"]).max()),
        "given": float(np.abs(books["given"]).max()),
        "off": books["off"],
        "sizes": books["sizes"],
    }


class Killer:
    """Kills workers during a step, every few steps and each rank in turn, when all ranks are
    present. Kills are recorded in a folder.

    Only one rank may read ``done`` and must tell the others, because a worker could die between the
    readings of two ranks.
    """

    steps_a_commit = 1

    def __init__(self, folder, kills):
        self._folder = Path(folder)
        self._kills = kills

    @property
    def done(self):
        return len(list(self._folder.glob("kill.*")))

    def is_over(self, done, size):
        return done == self._kills and size == SIZE

    def visit(self, done, rank, size, step):
        if (
            size == SIZE
            and step % STEPS_A_KILL == STEPS_A_KILL - 1
            and done < self._kills
            and rank == done % SIZE
        ):
            (self._folder / f"kill.{done}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Until:
    """Ends a run on a cluster when a file appears there. Hosts may fail before. Every third step is
    committed, so a failure undoes some steps."""

    steps_a_commit = 3

    def __init__(self, path):
        self._path = Path(path)
        self._ends_s = time.monotonic() + LIMIT_S

    @property
    def done(self):
        assert time.monotonic() < self._ends_s, f"{self._path} did not appear within {LIMIT_S} s"
        return int(self._path.exists())

    def is_over(self, done, size):
        return bool(done)

    def visit(self, done, rank, size, step):
        """Do nothing, because no worker is killed."""

    def check(self, books):
        assert max(books["off"]) < 1e-6 * books["given"], f"a reset lost what is owed: {books}"
        assert books["missing"] < 1e-5 * books["given"], f"entries are missing: {books}"
        return f"{books['sizes']} ranks, all alike; died with hosts {books['lost']:.3g}"
