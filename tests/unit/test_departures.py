"""Staleness: noting what leaves for later tells the same as looking at every step."""

from __future__ import annotations

import numpy as np
import pytest
import worlds
from worlds import configure, normals, tensors

from hvd_sparse.core.step.departures import MOST_STEPS, Departures
from hvd_sparse.core.step.session import Session
from hvd_sparse.frontend.outlet import Outlet
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.telemetry.contract import Place

SPECS = tensors((20, 50), (7,))


@pytest.mark.parametrize("size", [0, 1, 3, 200])
def test_many_steps_at_once_are_as_one_after_the_other(size):
    rng, numel = np.random.default_rng(size), 1000
    departures, left_at = Departures(numel, -1), np.full(numel, -1)
    for step in range(2 * MOST_STEPS):
        indices = np.sort(rng.choice(numel, size, replace=False)).astype(np.uint32)
        if step % 97 == 0:
            wanted = int((step - left_at[indices]).sum())
            assert departures.waited(indices, step) == wanted, step
        departures.note(step, indices)
        left_at[indices] = step


@pytest.mark.parametrize("parts", [{}, {"codec": "ternary"}, {"codec": "golomb"}])
def test_staleness_is_the_same_however_rarely_it_is_asked_for(parts):
    def told(every: int) -> dict[int, list[float]]:
        heard: list[dict] = []

        def train(collective) -> None:
            session = Session(configure(density=0.05, **parts), SPECS, collective)
            recorder = Recorder(session.step, every, Outlet([heard.append], Place()))
            for step in range(24):
                session.reduce(normals(SPECS, 0, step))
            recorder.close()

        worlds.run(1, train)
        return {
            each["step"]: [each["tensors"][key]["staleness"] for key in ("t0", "t1")]
            for each in heard
        }

    always, seldom = told(1), told(8)
    assert list(seldom) == [1, 8, 16, 24]
    assert seldom == {step: always[step] for step in seldom}
    assert always[24][0] > 2, "entries wait"
