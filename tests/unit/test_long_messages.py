"""More bytes than a collective can count are an error in words on all ranks, no crash on one."""

from __future__ import annotations

from types import SimpleNamespace

import cases
import numpy as np
import pytest
import worlds
from conformance.exchange_checks import SPECS, configured, integers, whole_residuals

from hvd_sparse.errors import PeerFailure
from hvd_sparse.exchanges import context as contexts
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.step.session import Session
from hvd_sparse.wire.message import split_messages

WORDS = "come to .* bytes in one collective, which moves at most .*: send fewer entries"


def context_of(keys):
    members = dict.fromkeys(range(len(keys)), SimpleNamespace())
    return ExchangeContext(
        rank=0,
        world_size=1,
        step=0,
        configuration=0,
        bucket=0,
        members=members,
        keys=keys,
        errors=[],
        kernels=None,
        select=None,
        selector=None,
    )


def test_a_frame_of_2_gib_is_told_before_any_message_is_made_of_it():
    """The frame is one byte, repeated: nothing here takes memory."""
    huge = np.broadcast_to(np.zeros(1, np.uint8), 2**31)
    (message,) = split_messages(context_of(["w"]).write({0: huge}), range(1))
    assert "UnsupportedInput: the messages of 'w' come to 2147483688 bytes" in message.error


def test_messages_that_are_2_gib_together_are_all_replaced(monkeypatch):
    monkeypatch.setattr(contexts, "MOST_BYTES", 250)
    frame = np.zeros(100, np.uint8)
    request = context_of(["w"]).to_each([{0: frame}, None, {0: frame}])
    assert request.splits.dtype == np.int32 and request.splits[1] == 0
    assert request.splits.sum() == request.array.size
    (message,) = split_messages(request.array[: request.splits[0]], range(1))
    assert "come to 280 bytes" in message.error


@pytest.mark.parametrize(
    "case", [case for case in cases.EXCHANGES if case.id != "shared_index"], ids=str
)
@pytest.mark.parametrize("limit", [150, 300])
def test_by_every_exchange_it_is_one_error_on_all_ranks_and_leaves_no_trace(
    case, limit, monkeypatch
):
    """300 bytes are room for some messages, and for few of all that an alltoall takes."""

    def script(collective):
        def meet(name):
            collective.allreduce(np.zeros(1), name).wait(worlds.TIMEOUT_S)

        session = Session(
            configured(case.create(EXCHANGES)), SPECS, collective, buckets=[(0, 1, 2)]
        )
        session.reduce(integers(collective.rank, 0))
        before = {key: kept.tobytes() for key, kept in whole_residuals(session).items()}
        meet("before")
        if collective.rank == 0:
            monkeypatch.setattr(contexts, "MOST_BYTES", limit)
        meet("now")
        with pytest.raises(PeerFailure, match=WORDS):
            session.reduce(integers(collective.rank, 1))
        meet("after")
        if collective.rank == 0:
            monkeypatch.undo()
        meet("again")
        assert {key: kept.tobytes() for key, kept in whole_residuals(session).items()} == before
        return all(
            np.isfinite(a).all() for a in session.reduce(integers(collective.rank, 1)).values()
        )

    assert worlds.run(4, script) == [True] * 4
