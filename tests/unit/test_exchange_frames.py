"""Frames that a tensor does not wait for, and messages too long for a collective, are refused."""

import struct
from types import SimpleNamespace

import cases
import numpy as np
import pytest
import worlds
from conformance.codec_checks import selection_of
from conformance.exchange_checks import SPECS, configured, integers
from conformance.forgeries import forged

from hvd_sparse.errors import CorruptPayload, PeerFailure, RankMismatch
from hvd_sparse.exchanges import context as contexts
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.kernels import reference
from hvd_sparse.registry import CODECS, EXCHANGES
from hvd_sparse.step.receiver import write_sum
from hvd_sparse.step.session import Session
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import (
    INDICES,
    VALUES,
    read_indices,
    read_values,
    write_indices,
    write_values,
)
from hvd_sparse.wire.message import split_messages

TEN = np.arange(10, dtype=np.float32)


def values(count, *, body=None, **header):
    body = TEN[:count].tobytes() if body is None else body
    return forged(body, codec=VALUES, numel=10, count=count, **header)


def indices(count, body, **header):
    return forged(body, codec=INDICES, numel=10, count=count, **header)


REFUSED_VALUES = {
    "fewer than the tensor has": values(3),
    "fewer than are announced": values(10, body=TEN[:9].tobytes()),
    "more than are announced": values(9, body=TEN.tobytes()),
    "others than are announced": values(10, body=TEN.tobytes(), value_type=2),
    "doubles": values(10, body=np.arange(10.0).tobytes(), value_type=2),
    "another format": values(10, value_format=1),
    "indices": indices(10, TEN.tobytes()),
    "bytes behind them": np.concatenate([values(10), np.zeros(1, np.uint8)]),
    "another tensor's": forged(TEN.tobytes(), codec=VALUES, numel=11, count=10),
}
REFUSED_INDICES = {
    "fewer than are announced": indices(2, struct.pack("<I", 3)),
    "half an index": indices(1, b"\3\0\0\0\4\0"),
    "one twice": indices(2, struct.pack("<II", 3, 3)),
    "one beyond the tensor": indices(1, struct.pack("<I", 10)),
    "another format": indices(1, struct.pack("<I", 3), value_format=2),
    "bytes behind them": np.concatenate([indices(1, struct.pack("<I", 3)), np.zeros(4, np.uint8)]),
}


def test_what_is_written_is_read():
    """Or the tests below could pass for the wrong reason."""
    assert read_values(write_values(TEN), 10, np.float32).tolist() == TEN.tolist()
    assert read_values(values(10), 10, np.float32).tolist() == TEN.tolist()
    chosen = np.array([2, 7], np.uint32)
    assert read_indices(write_indices(Selection(chosen, TEN[:2], 10)), 10).tolist() == [2, 7]
    assert read_indices(indices(1, struct.pack("<I", 3)), 10).tolist() == [3]


@pytest.mark.parametrize("what", REFUSED_VALUES)
def test_values_that_are_not_the_whole_of_a_tensor_are_refused(what):
    with pytest.raises(CorruptPayload):
        read_values(REFUSED_VALUES[what], 10, np.float32)


@pytest.mark.parametrize("what", REFUSED_INDICES)
def test_indices_that_no_rank_writes_are_refused(what):
    with pytest.raises(CorruptPayload):
        read_indices(REFUSED_INDICES[what], 10)


@pytest.mark.parametrize(
    ("numel", "dtype"), [(999, "float32"), (1_001, "float32"), (1_000, "float64")]
)
def test_a_payload_of_another_tensor_is_refused_by_name(numel, dtype):
    (spec,) = worlds.tensors((50, 20))
    codec = CODECS.create("index_value")
    frame = codec.encode(selection_of((1, 2), numel, dtype))
    words = f"'t0' has 1000 entries of float32, but a payload for it has {numel} of {dtype}"
    out = np.zeros(1_000, np.float32)
    with pytest.raises(CorruptPayload, match=words):
        write_sum((spec, codec, [(slice(0, 1_000), frame)], out, 1.0), reference)


WORDS = "come to .* bytes in one collective, which moves at most .*: send fewer entries"


def context_of(keys, world_size=1):
    members = dict.fromkeys(range(len(keys)), SimpleNamespace())
    zeros = dict.fromkeys(("rank", "step", "configuration", "bucket"), 0)
    others = {**zeros, **dict.fromkeys(("kernels", "select", "selector"))}
    return ExchangeContext(world_size=world_size, members=members, keys=keys, errors=[], **others)


def test_a_rank_that_has_failed_reports_no_errors_that_follow_from_this():
    """Without its own tensor, the other ranks' messages do not fit."""
    context = context_of(["w"])
    for word in ("first", "second"):
        with context.guarded():
            raise RankMismatch(word)
    assert context.errors == ["RankMismatch: first"]


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


def test_the_messages_of_all_ranks_that_send_frames_are_added_up(monkeypatch):
    """A message of 140 bytes: Horovod counts the bytes that a rank receives with 32 bits, too."""
    monkeypatch.setattr(contexts, "MOST_BYTES", 500)
    frames = {0: np.zeros(100, np.uint8)}
    (message,) = split_messages(context_of(["w"], 4).write(frames), range(1))
    assert "come to 560 bytes" in message.error
    assert context_of(["w"], 4).write(frames, senders=1).size == 140
    alone = context_of(["w"], 4)
    alone.counts_together = False  # as under DistributedDataParallel
    assert alone.write(frames).size == 140
    request = context_of(["w"], 4).to_each([frames, None, frames, None])
    assert request.splits.tolist() == [140, 0, 140, 0]


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (case, limit)
        for case in cases.EXCHANGES
        if case.id != "shared_index"
        for limit in ((150, 300) if case.id == "gtopk" else (150, 300, 600))
    ],
    ids=str,
)
def test_every_exchange_makes_it_one_error_on_all_ranks_without_a_trace(case, limit, monkeypatch):
    """300 bytes are room for some messages, and for few of all that an alltoall takes; 600 are room
    for each message of an allgather, but not for all ranks' together, of which gtopk has none."""
    configuration = configured(case.create(EXCHANGES))

    def script(collective):
        def meet(name):
            collective.allreduce(np.zeros(1), name).wait(worlds.TIMEOUT_S)

        session = Session(configuration, SPECS, collective, buckets=[(0, 1, 2)])
        session.reduce(integers(collective.rank, 0))
        before = worlds.bits_of(worlds.residuals(session))
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
        assert worlds.bits_of(worlds.residuals(session)) == before
        reduced = session.reduce(integers(collective.rank, 1))
        return all(np.isfinite(array).all() for array in reduced.values())

    assert worlds.run(4, script) == [True] * 4
