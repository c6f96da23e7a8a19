"""Small gradients wait until their bucket is full, and get the same bits."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import worlds
from steps import SPECS, start
from worlds import configure

from hvd_sparse.errors import CorruptPayload, PeerFailure
from hvd_sparse.step.rows import OutgoingRows
from hvd_sparse.step.step import Step

STEPS, SPOILT = 6, 3
CONFIGURATIONS = {
    "plain": {},
    "ldte_bs": {"selector": "ldte_bs"},
    "without rollback": {"rollback": False},
    "rounded": {"codec": "block16"},
    "momentum": {"memory": "momentum_correction"},
    "settled later": {"exchange": "gtopk"},
    "as a group": {"select_over": "group"},
}


def train(collective, options, *, waits, scale):
    session = start(collective, configure(**options))
    compress = session.driver.compress
    session.driver.compress = lambda *given, **more: compress(*given, **{**more, "stays": waits})
    told = []
    for step in range(STEPS):
        given = worlds.normals(SPECS, collective.rank, step)
        if step == SPOILT and collective.rank == 1:
            given["t1"][3] = np.nan
        kept = {key: gradient.copy() for key, gradient in given.items()}
        results = session.reduce(given, scale)
        assert all(worlds.same_bits(given[key], kept[key]) for key in kept)
        told.append({key: result.tobytes() for key, result in results.items()})
        told.append(worlds.snapshot(session))
    counted = session.step.stats.report(None)
    # Of a gradient with NaN a message has an empty frame or, where that is found late, none.
    for kind in ("payload_bytes", "bytes_sent", "bytes_received"):
        del counted[kind]
    return told, counted


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_tensors_that_wait_for_their_bucket_get_the_bits_of_their_own_turn(options, scale):
    def in_turn(collective):
        return train(collective, options, waits=False, scale=scale)

    def together(collective):
        return train(collective, options, waits=True, scale=scale)

    # An exchange that settles later, and a group, have a wait of their own.
    can_wait = not {"exchange", "select_over"} & set(options)
    with mock.patch.object(OutgoingRows, "add") as waiting:
        alone = worlds.run(2, in_turn)
        assert not waiting.called
        assert worlds.run(2, together) == alone
        assert waiting.called is can_wait


@pytest.mark.parametrize("is_heard", [False, True])
def test_each_takes_its_own_turn_where_somebody_listens(is_heard):
    def script(collective):
        session = start(collective, configure())
        if is_heard:
            session.step.spans.add(lambda *span: None)
        session.reduce(worlds.normals(SPECS, collective.rank, 0))

    with mock.patch.object(OutgoingRows, "add") as waiting:
        worlds.run(2, script)
    assert waiting.called is not is_heard


def test_a_step_that_failed_while_gradients_waited_is_not_gone_on_with():
    def script(collective):
        session = start(collective, configure())
        session.reduce(worlds.normals(SPECS, collective.rank, 0))
        before = worlds.snapshot(session)
        go_on = Step.converse

        def fail_before(sender, bucket, run, *place):
            if collective.rank == 1 and run.failure is None:
                session.step.transactions.fail(run, MemoryError("elsewhere"))
            return go_on(sender, bucket, run, *place)

        given = worlds.normals(SPECS, collective.rank, 1)
        sender = session.step
        sender.converse = lambda *rest: fail_before(sender, *rest)
        with pytest.raises((PeerFailure, MemoryError)):
            session.reduce(given)
        del sender.converse
        assert worlds.snapshot(session) == before

    worlds.run(2, script)


def test_a_payload_that_was_altered_is_told_in_its_own_tensors_turn():
    def script(collective):
        session = start(collective, configure())
        session.reduce(worlds.normals(SPECS, collective.rank, 0))
        before, came = worlds.snapshot(session), []
        receiver = session.step
        receive, result = receiver.receive, receiver.result

        def alter(bucket, arrivals):
            if 2 in arrivals:
                (place, frame), *others = arrivals[2].parts
                altered = frame.copy()
                altered[-1] ^= 1
                arrivals[2] = arrivals[2]._replace(parts=((place, altered), *others))
            receive(bucket, arrivals)

        def note(ticket, *given):
            found = result(ticket, *given)
            came.append(ticket.key)
            return found

        receiver.receive, receiver.result = alter, note
        with pytest.raises(CorruptPayload, match="altered on its way"):
            session.reduce(worlds.normals(SPECS, collective.rank, 1))
        assert worlds.snapshot(session) == before
        return came

    assert worlds.run(2, script) == [["t0", "t1"], ["t0", "t1"]]
