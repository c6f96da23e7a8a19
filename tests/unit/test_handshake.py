"""Ranks agree: the handshake names what differs, and replicas that drift apart are noticed."""

import numpy as np
import pytest
import worlds
from unit import steps
from worlds import configure, tensors

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.errors import RankMismatch, ReplicaMismatch
from hvd_sparse.step.handshake import describe_rank, handshake
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

SPECS = tensors((4, 3), (5,))
HEAD = TensorSpec("head", (4, 3), "float32")


def document(configuration=None, specs=SPECS, name="model", **changes):
    return {**describe_rank(configuration or configure(), specs, name), **changes}


def shake(world, odd_one_out):
    def script(collective):
        is_odd = collective.rank == collective.world_size - 1
        own = odd_one_out if is_odd else document()
        handshake(own, Gatherer(collective, "hs", worlds.TIMEOUT_S))

    return world.run_all(script)


DIFFERENCES = {
    "another density": (document(configure(density=0.5)), '"density": 0.5'),
    "an extra tensor": (document(specs=tensors((4, 3), (5,), (2, 2))), "t2 [2, 2] float32"),
    "a tensor less": (document(specs=tensors((4, 3))), "t1 [5] float32"),
    "another shape": (document(specs=tensors((4, 4), (5,))), "t0 [4, 4] float32"),
    "another dtype": (document(specs=tensors((4, 3), (5,), dtype="float64")), "t0 [4, 3] float64"),
    "another name of a tensor": (document(specs=[HEAD, SPECS[1]]), "head [4, 3]"),
    "another order of tensors": (document(specs=SPECS[::-1]), "t1 [5] float32"),
    "another version": (document(version="9.9.9"), '"version": "9.9.9"'),
    "another name": (document(name="generator"), '"name": "generator"'),
}


@pytest.mark.parametrize("what", DIFFERENCES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_difference_is_named_on_every_rank(what, world_size):
    odd_one_out, words = DIFFERENCES[what]
    errors = shake(LocalWorld(world_size, worlds.TIMEOUT_S), odd_one_out)
    assert [type(error) for error in errors] == [RankMismatch] * world_size
    assert len({str(error) for error in errors}) == 1
    assert words in str(errors[0])
    assert f"rank {world_size - 1}" in str(errors[0])
    assert "on every rank" in str(errors[0])


def test_a_long_list_of_differences_is_cut_and_says_so():
    many = document(specs=tensors(*[(i + 1, 2) for i in range(100)]))
    errors = shake(LocalWorld(2, worlds.TIMEOUT_S), many)
    assert "more" in str(errors[0])
    assert len(str(errors[0])) < 2_000


def break_memory(session, position):
    receiver = session.step
    finish = receiver._finish

    def faulty(ticket, reduced, *others, **options):
        if ticket.position == position:
            reduced.view(np.uint32)[2] ^= 1
        return finish(ticket, reduced, *others, **options)

    receiver._finish = faulty


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_flipped_bit_is_found_after_the_next_checked_step_and_the_tensor_named(
    broken, world_size
):
    def script(collective):
        session = Session(configure(check_replicas_every=3), steps.SPECS, collective)
        session.reduce(steps.gradients(collective, 0))
        if collective.rank == steps.FAULTY:
            break_memory(session, broken)
        for step in (1, 2):
            session.reduce(steps.gradients(collective, step))
        words = f"tensor 't{broken}': the gradients applied in the last checked step"
        with pytest.raises(ReplicaMismatch, match=words):
            session.reduce(steps.gradients(collective, 3))

    worlds.run(world_size, script)


def test_a_step_that_is_taken_back_is_not_checked():
    def script(collective):
        session = Session(configure(check_replicas_every=1), steps.SPECS, collective)
        for step in range(6):
            given = steps.gradients(collective, step)
            if step % 2 and collective.rank == steps.FAULTY:
                given["t1"][3] = np.nan
            session.reduce(given)
        return session.step.stats.nonfinite_steps

    assert worlds.run(3, script) == [3] * 3
