"""Steps: their order on all ranks, what is begun again, and failures that leave no trace."""

import gc
import re
import threading
import weakref
from unittest import mock

import numpy as np
import pytest
import worlds
from unit.steps import FAULTY, SPECS, check_next_step, gradients, start, start_exchange
from worlds import Around, configure, snapshot

from hvd_sparse.errors import (
    CorruptPayload,
    ExchangeTimeout,
    NonFiniteGradient,
    PeerFailure,
    RankMismatch,
    SparseError,
    UnsupportedReduction,
)
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.step.records import joined
from hvd_sparse.step.session import Session
from hvd_sparse.step.step import Step


def test_exchanges_are_finished_in_the_same_order_on_every_rank_whatever_the_order_of_gradients():
    """MPI tells blocking collectives apart by nothing but their order."""

    def script(collective):
        waited = []

        def watch(kind, arguments, call):
            pending = call()
            wait = pending.wait
            pending.wait = lambda limit_s: (waited.append((kind, arguments[-1])), wait(limit_s))[1]
            return pending

        session = start(worlds.Around(collective, watch), configure(exchange="shared_index"))
        given, order = gradients(collective, 0), ((0, 1, 2), (2, 1, 0), (1, 0, 2))[collective.rank]
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

    def begin(session):
        rank = session.collective.rank
        has_submitted[rank].wait()
        session.driver.compress(0, gradients(session.collective, 0)["t0"].reshape(-1))
        has_submitted[rank + 1].set()

    check_next_step(begin, world_size=4, looks=False)


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


def test_a_bucket_whose_gradients_are_on_the_host_already_starts_at_once():
    """Gradients that DDP has on a device are copied to the host before they are compressed."""

    def script(collective):
        session, given = start(collective), gradients(collective, 0)
        devices = session.step.transactions.devices = mock.Mock()
        devices.zeros_of.return_value = None
        devices.together = lambda walks: [walk() for walk in walks]
        sent = [
            session.driver.compress(position, given[f"t{position}"].reshape(-1))
            for position in (1, 2)
        ]
        assert session.driver._under_way and not session.driver._coming
        for position, (wire, ticket) in zip((1, 2), sent):
            reduced = collective.allreduce(wire, f"t{position}").wait(None)
            session.driver.decompress(reduced, ticket)

    worlds.run(2, script)


SPARSE = configure(on_nonfinite="raise")
DENSE = configure(density=1.0, allow_dense=True, on_nonfinite="raise")


def spoil_last_gradient(session, given):
    given["t2"][0, :2] = np.nan, np.inf


def break_kernel(session, given):
    class Broken(Kernels):
        def accumulate_and_take(self, gradient, *others):
            if gradient.size == SPECS[1].numel:
                session.step.pipeline.kernels = reference
                raise MemoryError("out of memory")
            return super().accumulate_and_take(gradient, *others)

    session.step.pipeline.kernels = Broken()


NOT_FINITE = (
    r"NonFiniteGradient: tensor 't2': 2 of 9 entries of its gradient are NaN or Inf; .* clip"
)
FAILURES = [
    pytest.param(DENSE, spoil_last_gradient, NOT_FINITE, id="not-finite-dense"),
    pytest.param(SPARSE, break_kernel, "MemoryError: out of memory", id="kernel-raises"),
]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("configuration", "break_it", "words"), FAILURES)
def test_a_failure_on_one_rank_is_one_error_on_all_and_leaves_no_trace(
    configuration, break_it, words, world_size
):
    def fail(session):
        session.reduce(gradients(session.collective, 0))
        before, given = snapshot(session), gradients(session.collective, 1)
        if session.collective.rank == FAULTY:
            break_it(session, given)
        with pytest.raises(PeerFailure) as caught:
            session.reduce(given)
        assert snapshot(session) == before
        return str(caught.value)

    (message,) = set(check_next_step(fail, configuration, world_size))
    assert re.search(rf"rank {FAULTY}: {words}", message)


def test_without_rollback_a_peers_failure_keeps_the_gradient_in_the_residual():
    """What is refused was not accumulated; what the step before sent must not come back."""

    def script(collective):
        session = start(collective, configure(rollback=False, on_nonfinite="raise"))
        session.reduce(gradients(collective, 0))
        before, fine = worlds.residuals(session), gradients(collective, 1)
        broken = {**fine, "t2": np.full((3, 3), np.nan, np.float32)}
        with pytest.raises(PeerFailure):
            session.reduce(broken if collective.rank == FAULTY else fine)
        return before, fine, worlds.residuals(session)

    for rank, (before, fine, after) in enumerate(worlds.run(2, script)):
        for key in fine:
            is_refused = (rank, key) == (FAULTY, "t2")
            grown = before[key] + fine[key].reshape(-1)
            assert after[key].tolist() == (before[key] if is_refused else grown).tolist()


def test_a_tensor_that_one_rank_lacks_is_named_on_all():
    def script(collective):
        session = start(collective)
        entered = (1,) if collective.rank == FAULTY else (1, 2)
        given = gradients(collective, 0)
        wires = [session.driver.compress(i, given[f"t{i}"].reshape(-1)) for i in entered]
        wire, ticket = wires[0]
        with pytest.raises(RankMismatch) as caught:
            session.driver.decompress(collective.allreduce(wire, "t1").wait(None), ticket)
        assert not any(residual.any() for residual in worlds.residuals(session).values())
        return str(caught.value)

    for message in worlds.run(2, script):
        assert "['t1', 't2']" in message and "['t1']" in message
        assert "all ranks must compress the same tensors" in message


def test_a_failure_that_shows_late_takes_back_the_tensors_that_were_through():
    def fail(session):
        session.reduce(gradients(session.collective, 0))
        before = snapshot(session)
        started = start_exchange(session, (0, 1, 2), gradients(session.collective, 1))
        first, (reduced, ticket), last = started.values()
        session.driver.decompress(*first)
        with pytest.raises(UnsupportedReduction) as caught:
            session.driver.decompress(np.zeros_like(reduced), ticket)
        with pytest.raises(UnsupportedReduction) as again:
            session.driver.decompress(*last)
        assert again.value is caught.value, "the rest of a failed step must fail of the same cause"
        assert snapshot(session) == before

    check_next_step(fail)


def check_leaves_no_trace(break_it, error):
    """``break_it`` breaks a session's step, and returns what mends it."""

    def fail(session):
        session.reduce(gradients(session.collective, 0))
        before, mend = snapshot(session), break_it(session)
        with pytest.raises(error):
            session.reduce(gradients(session.collective, 1))
        mend()
        assert snapshot(session) == before

    check_next_step(fail)


def replaced(part, name, function):
    setattr(part, name, function)
    return lambda: delattr(part, name)


def test_an_interrupt_takes_back_the_tensors_that_were_through():
    def break_it(session):
        result = session.step.result

        def interrupted(ticket, *given):
            if ticket.key == "t1":
                raise KeyboardInterrupt
            return result(ticket, *given)

        return replaced(session.step, "result", interrupted)

    check_leaves_no_trace(break_it, KeyboardInterrupt)


def test_an_interrupt_is_not_raised_a_second_time():
    def script(collective):
        session = start(collective)
        _, ticket = session.driver.compress(0, np.ones(SPECS[0].numel, np.float32))
        session.step.transactions.fail(ticket.run, KeyboardInterrupt())
        with pytest.raises(SparseError, match="interrupted by KeyboardInterrupt"):
            session.driver.decompress(np.zeros(ticket.layout.size), ticket)

    worlds.run(1, script)


def test_ranks_that_began_buckets_in_different_orders_end_a_failed_step_in_the_same_order():
    """The gradients come in another order on each rank, and all ranks refuse their carriers."""

    def fail(session):
        given, rank = gradients(session.collective, 0), session.collective.rank
        sent = [
            session.driver.compress(position, given[SPECS[position].key].reshape(-1))
            for position in ((2, 1, 0) if rank else (0, 1, 2))
        ]
        _, ticket = sent[0]
        with pytest.raises(UnsupportedReduction):
            session.driver.decompress(np.full(ticket.layout.size, np.nan), ticket)

    check_next_step(fail, configure(exchange="oktopk", timeout_s=20.0))


def test_a_bucket_whose_exchange_a_later_step_has_discarded_is_refused_by_name():
    def script(collective):
        session = start(collective)
        given = [np.ones(SPECS[i].numel, np.float32) for i in range(3)]
        wire, ticket = session.driver.compress(1, given[1])
        for _ in range(2):
            session.driver.compress(2, given[2])
        reduced = collective.allreduce(wire, "t1").wait(None)
        with pytest.raises(RankMismatch, match="'t1' or 't2' was compressed again"):
            session.driver.decompress(reduced, ticket)

    worlds.run(2, script)


def test_tensors_of_joined_buckets_are_selected_from_together_and_leave_no_cycles():
    step = Step(configure(), SPECS, [(0,), (1,), (2,)], reference)
    step.meet(0, 1)

    def reduce():
        given = [np.ones(spec.numel, np.float32) for spec in SPECS]
        made = [step.compress(i, x, is_joined=True) for i, x in enumerate(given)]
        bucket = joined([ticket for _, ticket in made])
        assert bucket.begun == [ticket for _, ticket in made]
        step.converse(bucket, made[0][1].run)
        request = bucket.advance(None)
        assert bucket.advance(request.array) is None
        step.receive(bucket)
        for wire, ticket in made:
            step.result(ticket, wire, np.empty(0, np.float32))
        return [weakref.ref(ticket) for _, ticket in made]

    gc.disable()
    try:
        assert [each() for each in reduce()] == [None] * 3
    finally:
        gc.enable()


def test_an_exchange_that_raises_is_not_waited_for_again():
    class Once:
        def __init__(self, pending):
            self.pending, self.is_waited_for = pending, False

        def wait(self, timeout_s):
            assert not self.is_waited_for, "Horovod has cleared the handle"
            self.is_waited_for = True
            return self.pending.wait(timeout_s)

    def break_it(session):
        around = Around(session.collective, lambda kind, given, call: Once(call()))
        session.driver.collective = around

        def failing(exchange, index):  # of the first bucket
            del session.step._carry
            yield next(exchange)
            raise MemoryError("out of memory")

        session.step._carry = failing
        return lambda: None

    check_leaves_no_trace(break_it, MemoryError)


def test_an_error_that_an_old_step_left_behind_does_not_end_the_next_step():
    def broken(timeout_s):
        raise MemoryError("out of memory")

    def fail(session):
        waiting = start_exchange(session, (0, 1, 2), gradients(session.collective, 0))
        for pending in session.driver._under_way.values():
            pending.wait = broken
        with pytest.raises(MemoryError):
            session.driver.decompress(*waiting[0])

    check_next_step(fail)


def test_a_rank_that_cannot_measure_its_chunks_lets_no_other_rank_wait():
    class Broken(Kernels):
        def chunk_norms(self, *_):
            raise MemoryError("out of memory")

    def fail(session):
        if session.collective.rank == FAULTY:
            session.step.pipeline.kernels = Broken()
        with pytest.raises((MemoryError, RankMismatch)) as caught:
            session.reduce(gradients(session.collective, 0))
        session.step.pipeline.kernels = reference
        return str(caught.value)

    chunked = {"id": "chunked", "density": 0.3, "chunk_length": 3}
    told = check_next_step(fail, configure(chunked, exchange="shared_index"))
    assert "or of a failed rank" in told.pop(1 - FAULTY) and told == ["out of memory"]


def test_after_a_lost_rank_one_exchange_of_an_old_step_is_waited_for():
    def script(collective):
        waits = []

        def never(timeout_s):
            waits.append(timeout_s)
            raise ExchangeTimeout("some rank has ended")

        session = start(collective)
        start_exchange(session, (0, 1, 2), gradients(collective, 0))
        session.step.transactions.settle_all()
        assert len(session.driver._under_way) == 2
        for pending in session.driver._under_way.values():
            pending.wait = never
        session.driver.compress(1, gradients(collective, 1)["t1"].reshape(-1))
        return len(waits)

    assert worlds.run(2, script) == [1, 1]


def test_a_failure_takes_back_no_earlier_step():
    def script(collective):
        session = start(collective, SPARSE)
        session.reduce({"t0": gradients(collective, 0)["t0"]})
        with pytest.raises(PeerFailure):
            session.reduce({"t1": np.full(8, np.nan, np.float32)})
        return {key: steps for key, (steps, _, _) in snapshot(session).items()}

    assert worlds.run(2, script) == [{"t0": 1, "t1": 0}] * 2


@pytest.mark.parametrize("on_nonfinite", ["propagate", "raise"])
@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("min_numel", [1, 1000], ids=["compressed", "dense"])
def test_a_gradient_whose_square_overflows_leaves_no_trace(on_nonfinite, rollback, min_numel):
    specs = worlds.tensors((8, 4))
    options = {"rollback": rollback, "memory": "adam_correction", "min_numel": min_numel}

    def script(collective, spoils):
        configuration = configure(on_nonfinite=on_nonfinite, **options)
        session, results = Session(configuration, specs, collective), []
        for step in (0, 1, 2) if spoils else (0, 2):
            given = worlds.normals(specs, step)
            if step == 1:
                given["t0"][2, 3] = 1e25
            try:
                results.append(session.reduce(given)["t0"].tobytes())
            except (NonFiniteGradient, PeerFailure):
                results.append(np.full((8, 4), np.nan, np.float32).tobytes())
        return results

    clean, spoiled = (worlds.run(2, lambda c, spoils=s: script(c, spoils)) for s in (False, True))
    bad = np.full((8, 4), np.nan, np.float32).tobytes()
    assert spoiled == [[first, bad, last] for first, last in clean]


def test_a_step_that_failed_while_gradients_waited_is_not_gone_on_with():
    def break_it(session):
        def fail_before(bucket, run, *place):
            if session.collective.rank == 1 and run.failure is None:
                session.step.transactions.fail(run, MemoryError("elsewhere"))
            Step.converse(session.step, bucket, run, *place)

        return replaced(session.step, "converse", fail_before)

    check_leaves_no_trace(break_it, (PeerFailure, MemoryError))


def test_a_payload_that_was_altered_is_told_in_its_own_tensors_turn():
    came = []

    def break_it(session):
        receive, result = session.step.receive, session.step.result

        def alter(bucket):
            arrivals = bucket.arrivals
            if 2 in arrivals:
                (place, frame), *others = arrivals[2].parts
                altered = frame.copy()
                altered[-1] ^= 1
                arrivals[2] = arrivals[2]._replace(parts=((place, altered), *others))
            receive(bucket)

        def note(ticket, *given):
            found = result(ticket, *given)
            came.append(ticket.key)
            return found

        mends = replaced(session.step, "receive", alter), replaced(session.step, "result", note)
        return lambda: [mend() for mend in mends]

    check_leaves_no_trace(break_it, CorruptPayload)
    assert sorted(came) == ["t0", "t0", "t1", "t1"]  # of both ranks
