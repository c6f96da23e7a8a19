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
def test_allgather_joins_arrays_of_any_lengths_in_rank_order(world_size):
    expected = [x for rank in range(world_size) for x in own(rank).tolist()]
    for result in LocalWorld(world_size, TIMEOUT_S).run(
        lambda c: c.allgather(own(c.rank), "x").wait(TIMEOUT_S)
    ):
        assert result.tolist() == expected


@worlds_of
def test_allreduce_adds_in_rank_order_in_the_dtype_given(world_size):
    values = np.array([1e8, 1.0, -1e8, 3.0, 0.1, 7.0, 1e8, 2.0], np.float32)[:world_size]
    expected = np.float32(0)
    for value in values:
        expected = expected + value
    for result in LocalWorld(world_size, TIMEOUT_S).run(
        lambda c: c.allreduce(values[c.rank : c.rank + 1], "x").wait(TIMEOUT_S)
    ):
        assert result.dtype == np.float32 and result.tolist() == [expected]


@worlds_of
def test_alltoall_delivers_every_part_to_its_rank_in_order_of_senders(world_size):
    """Rank s sends r + s entries that say (s, r) to rank r: some parts are empty."""

    def script(collective):
        splits = np.array([r + collective.rank for r in range(world_size)])
        sent = np.repeat(100 * collective.rank + np.arange(world_size), splits)
        return collective.alltoall(sent, splits, "x").wait(TIMEOUT_S).tolist()

    for rank, received in enumerate(LocalWorld(world_size, TIMEOUT_S).run(script)):
        assert received == [100 * s + rank for s in range(world_size) for _ in range(rank + s)]


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


def test_the_first_ranks_error_is_raised():
    def script(collective):
        if collective.rank:
            raise KeyError(collective.rank)

    with pytest.raises(KeyError, match="1"):
        LocalWorld(3, TIMEOUT_S).run(script)


def test_a_rank_that_hangs_does_not_hang_the_others():
    world = LocalWorld(2, 0.2)
    results = world.run_all(lambda c: c.rank or c.allgather(own(0), "x").wait(None))
    assert isinstance(results[0], ExchangeTimeout) and results[1] == 1
