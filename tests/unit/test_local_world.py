"""The world of threads does what a collective is defined to do, and never waits for ever."""

import threading

import numpy as np
import pytest
from worlds import TIMEOUT_S

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.errors import ExchangeTimeout, RankMismatch

worlds_of = pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])


def own(rank):
    return np.arange(rank + 1, dtype=np.float32) + 10 * rank


@worlds_of
def test_allreduce_adds_in_rank_order_in_the_dtype_given(world_size):
    values = np.array([1e8, 1.0, -1e8, 3.0, 0.1, 7.0, 1e8, 2.0], np.float32)[:world_size]
    expected = np.float32(0)
    for value in values:
        expected = expected + value
    world = LocalWorld(world_size, TIMEOUT_S)
    for result in world.run(lambda c: c.allreduce(values[[c.rank]], "x").wait(TIMEOUT_S)):
        assert result.dtype == np.float32 and result.tolist() == [expected]


def test_what_was_submitted_may_be_overwritten_afterwards():
    def script(collective):
        array = own(collective.rank)
        pending = collective.allgather(array, "x")
        array[:] = -1
        return pending.wait(TIMEOUT_S).tolist()

    assert LocalWorld(2, TIMEOUT_S).run(script) == [[0.0, 10.0, 11.0]] * 2


def test_a_rank_that_does_not_come_is_named():
    world = LocalWorld(3, TIMEOUT_S)
    have_submitted = threading.Barrier(2)

    def script(collective):
        if collective.rank == 1:
            return True
        pending = collective.allgather(own(0), "x")
        have_submitted.wait()
        return pending.wait(0.1)

    results = world.run_all(script)
    assert [type(result) for result in results] == [ExchangeTimeout, bool, ExchangeTimeout]
    assert "'allgather.x' did not finish in 0.1 s: ranks [1] did not submit it" in str(results[0])


def test_a_name_that_is_under_way_is_not_submitted_twice():
    def script(collective):
        collective.allgather(own(0), "x")
        collective.allgather(own(0), "x")

    world = LocalWorld(2, TIMEOUT_S)
    with pytest.raises(RankMismatch, match=r"submits 'allgather.x' twice"):
        script(world.run(lambda c: c)[0])


def test_a_rank_that_hangs_does_not_hang_the_others():
    world = LocalWorld(2, 0.2)
    results = world.run_all(lambda c: c.rank or c.allgather(own(0), "x").wait(None))
    assert isinstance(results[0], ExchangeTimeout) and results[1] == 1
