"""The world of threads does what a collective is defined to do, and never waits for ever."""

import threading

import numpy as np
import pytest
from worlds import TIMEOUT_S

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.errors import ExchangeTimeout, RankMismatch


def own(rank):
    return np.arange(rank + 1, dtype=np.float32) + 10 * rank


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
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


@pytest.mark.parametrize("limit_s", [0.1, None], ids=["of the wait", "of the world"])
def test_a_rank_that_does_not_come_is_named_at_the_limit(limit_s):
    world = LocalWorld(3, TIMEOUT_S)
    first, _, last = world.run(lambda c: c)
    pending = [each.allgather(own(0), "x") for each in (first, last)]
    world.timeout_s = TIMEOUT_S if limit_s else 0.1
    words = r"'allgather.x' did not finish in 0.1 s: ranks \[1\] did not submit it"
    for each in pending:
        with pytest.raises(ExchangeTimeout, match=words):
            each.wait(limit_s)


def test_a_name_that_is_under_way_is_not_submitted_twice():
    first, _ = LocalWorld(2, TIMEOUT_S).run(lambda c: c)
    first.allgather(own(0), "x")
    with pytest.raises(RankMismatch, match=r"submits 'allgather.x' twice"):
        first.allgather(own(0), "x")


def test_a_rank_that_hangs_does_not_hang_a_run():
    is_over = threading.Event()
    (result,) = LocalWorld(1, 0.1).run_all(lambda c: is_over.wait())
    is_over.set()
    assert isinstance(result, ExchangeTimeout)
