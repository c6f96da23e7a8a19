"""A step in good health: order of results, and steps that are begun again."""

import threading
from unittest import mock

import pytest
import worlds
from unit.steps import assert_conserved, gradients, measured_step, start, start_exchange
from worlds import configure, snapshot

IN_TWO_PHASES = configure(exchange="shared_index")
ORDERS = [(0, 1, 2), (2, 1, 0), (1, 0, 2)]


def test_exchanges_are_finished_in_the_same_order_on_every_rank_whatever_the_order_of_gradients():
    """MPI tells blocking collectives apart by nothing but their order."""

    def script(collective):
        waited = []

        def watch(kind, arguments, call):
            pending = call()
            wait = pending.wait
            pending.wait = lambda limit_s: (waited.append((kind, arguments[-1])), wait(limit_s))[1]
            return pending

        session = start(worlds.Around(collective, watch), IN_TWO_PHASES)
        given, order = gradients(collective, 0), ORDERS[collective.rank]
        waiting = start_exchange(session, order, given)
        waited.clear()
        results = {p: session.driver.decompress(*waiting[p]).tobytes() for p in order}
        return waited, results

    first, *others = worlds.run(3, script)
    assert len(first[0]) == 4 and others == [first, first]


def test_a_step_that_is_begun_again_waits_for_what_the_old_one_submitted():
    """The names of its collectives are not free before; other ranks may be late."""

    has_submitted = [threading.Event() for _ in range(5)]
    has_submitted[0].set()

    def script(collective):
        session = start(collective)
        has_submitted[collective.rank].wait()
        session.driver.compress(0, gradients(collective, 9)["t0"].reshape(-1))
        has_submitted[collective.rank + 1].set()
        return measured_step(session, gradients(collective, 0), looks=False)

    assert_conserved(worlds.run(4, script))


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("entered", [(0,), (1,), (0, 1, 2)], ids=str)
def test_a_step_that_is_left_unfinished_and_begun_again_leaves_no_trace(dense, entered):
    configuration = configure(density=1.0 if dense else 0.25, allow_dense=dense)

    def script(collective, is_interrupted):
        session = start(collective, configuration)
        session.reduce(gradients(collective, 0))
        if is_interrupted:
            start_exchange(session, entered, gradients(collective, 9))
            session.step.transactions.settle_all()
        return worlds.bits_of(session.reduce(gradients(collective, 1))), snapshot(session)

    interrupted, whole = (worlds.run(2, lambda c, i=i: script(c, i)) for i in (True, False))
    assert interrupted == whole


def test_a_step_counts_when_it_is_complete_and_not_before():
    def script(collective):
        session = start(collective)
        session.reduce(gradients(collective, 0))
        waiting = start_exchange(session, (1, 2), gradients(collective, 1))
        session.driver.decompress(*waiting[1])
        return {key: steps for key, (steps, _, _) in snapshot(session).items()}

    assert worlds.run(2, script) == [{"t0": 1, "t1": 2, "t2": 1}] * 2


def test_a_bucket_whose_gradients_are_on_the_host_already_starts_at_once():
    """Gradients that DDP has on a device are copied to the host before they are compressed."""

    def script(collective):
        session, given = start(collective), gradients(collective, 0)
        devices = session.step.transactions.devices = mock.Mock()
        devices.zeros_of.return_value = None
        devices.together = lambda walks: [walk() for walk in walks]
        sent = [
            session.driver.compress(position, given[f"t{position}"].reshape(-1), stays=True)
            for position in (1, 2)
        ]
        assert session.driver._under_way and not session.driver._coming
        for position, (wire, ticket) in zip((1, 2), sent):
            reduced = collective.allreduce(wire, f"t{position}").wait(None)
            session.driver.decompress(reduced, ticket)

    worlds.run(2, script)
