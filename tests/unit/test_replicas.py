"""Replicas that drift apart are noticed in the next step, and the tensor is named."""

from __future__ import annotations

import numpy as np
import pytest
import worlds
from worlds import configure, integers, tensors

from hvd_sparse.errors import ReplicaMismatch
from hvd_sparse.step.session import Session

SPECS = tensors((6, 5), (8,), (3, 3))
FAULTY = 1


def break_memory(session, position):
    receiver = session.step
    finish = receiver._finish

    def faulty(ticket, spec, reduced, *others, **options):
        if spec is SPECS[position]:
            reduced.view(np.uint32)[2] ^= 1
        return finish(ticket, spec, reduced, *others, **options)

    receiver._finish = faulty


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_flipped_bit_is_found_after_the_next_checked_step_and_the_tensor_named(
    broken, world_size
):
    def script(collective):
        session = Session(configure(check_replicas_every=3), SPECS, collective)
        session.reduce(integers(SPECS, collective.rank, 0))
        if collective.rank == FAULTY:
            break_memory(session, broken)
        for step in (1, 2):
            session.reduce(integers(SPECS, collective.rank, step))
        with pytest.raises(
            ReplicaMismatch,
            match=f"tensor 't{broken}': the gradients applied in the last checked step",
        ):
            session.reduce(integers(SPECS, collective.rank, 3))

    worlds.run(world_size, script)


@pytest.mark.parametrize("options", [{}, {"density": 1.0, "allow_dense": True}, {"min_numel": 9}])
def test_replicas_that_agree_go_on(options):
    def script(collective):
        checked = Session(configure(check_replicas_every=2, **options), SPECS, collective)
        plain = Session(configure(**options), SPECS, collective)
        for step in range(9):
            given = integers(SPECS, collective.rank, step)
            ours, theirs = checked.reduce(given), plain.reduce(given)
            assert {key: array.tobytes() for key, array in ours.items()} == {
                key: array.tobytes() for key, array in theirs.items()
            }

    worlds.run(4, script)


def test_a_step_that_is_taken_back_is_not_checked():
    def script(collective):
        session = Session(configure(check_replicas_every=1), SPECS, collective)
        for step in range(6):
            given = integers(SPECS, collective.rank, step)
            if step % 2 and collective.rank == FAULTY:
                given["t1"][3] = np.nan
            session.reduce(given)
        return session.step.stats.nonfinite_steps

    assert worlds.run(3, script) == [3] * 3
