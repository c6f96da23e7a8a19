"""Exchanges: the nodes of ranks, the choice of ``auto``, refused parts, frames, long messages."""

import re
import struct
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import cases
import numpy as np
import pytest
import worlds
from conformance.codec_checks import selection_of
from conformance.exchange_checks import SPECS, configured, integers
from conformance.forgeries import forged

from hvd_sparse.checks import check_whole, option
from hvd_sparse.collectives.contract import ProcessSetRanks
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import CorruptPayload, InvalidOption, PeerFailure, RankMismatch
from hvd_sparse.exchanges import context as contexts
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.kernels import reference
from hvd_sparse.registry import CODECS, EXCHANGES, SELECTORS
from hvd_sparse.step import handshake
from hvd_sparse.step.driver import Driver
from hvd_sparse.step.receiver import write_sum
from hvd_sparse.step.session import Session
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec
from hvd_sparse.wire.frame import INDICES, VALUES, read_indices, read_values
from hvd_sparse.wire.message import split_messages

TOPK = {"id": "topk", "density": 0.001}


@pytest.mark.parametrize("exchange", ["hierarchical", "auto"])
def test_a_rank_outside_of_the_process_set_has_no_placement(exchange):
    others = mock.Mock(spec=["ranks", "rank", "size"], ranks=[1, 2], size=lambda: 2)
    others.rank.side_effect = ValueError("Process is not part of provided process set.")
    specs, configuration = worlds.tensors((12,)), worlds.configure(exchange=exchange)
    step = Step(configuration, specs, [(0,)], reference)
    Driver(step, ProcessSetRanks(others), "x")
    assert step.placement is None


def numbered(hosts, rank):
    """Return Horovod's module as a rank sees it whose number is its place in ``hosts``."""
    host = hosts[rank]
    place = {"local_rank": hosts[:rank].count(host), "local_size": hosts.count(host)}
    place |= {"rank": rank, "size": len(hosts), "cross_rank": sorted(set(hosts)).index(host)}
    place |= {"cross_size": len(set(hosts)), "is_homogeneous": True}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in place.items()})


def placed(hosts, exchange, monkeypatch):
    """Return each rank's placement or error in a world whose ranks run on ``hosts``."""
    here = threading.local()
    monkeypatch.setattr(handshake, "gethostname", lambda: here.name)
    specs = worlds.tensors((12,))

    def script(collective):
        here.name = hosts[collective.rank]
        there = worlds.Around(collective, lambda kind, arguments, call: call())
        ranks = ProcessSetRanks(SimpleNamespace(ranks=None))
        ranks.horovod = numbered(hosts, collective.rank)
        there.nodes = ranks.nodes
        return Session(worlds.configure(exchange=exchange), specs, there).step.placement.nodes

    return LocalWorld(len(hosts), worlds.TIMEOUT_S).run_all(script)


@pytest.mark.parametrize("exchange", ["hierarchical", "auto"])
def test_ranks_share_a_node_host_by_host_and_hosts_in_turn_are_refused(exchange, monkeypatch):
    assert placed("aabb", exchange, monkeypatch) == [(0, 0, 1, 1)] * 4
    assert placed("aabbcc", exchange, monkeypatch) == [(0, 0, 1, 1, 2, 2)] * 6
    words = f"exchange {exchange} takes the ranks .* on the hosts .*: number .* --map-by slot"
    for hosts in ("abab", "abba", "abcabc"):
        for error in placed(hosts, exchange, monkeypatch):
            assert isinstance(error, InvalidOption) and re.match(words, str(error)), error


def test_a_number_of_ranks_per_node_may_divide_or_join_hosts_but_not_both(monkeypatch):
    def told(hosts, ranks_per_node):
        exchange = {"id": "hierarchical", "ranks_per_node": ranks_per_node}
        return placed(hosts, exchange, monkeypatch)

    assert told("aaaa", 2) == [(0, 0, 1, 1)] * 4
    assert told("aabb", 4) == [(0,) * 4] * 4
    for hosts, ranks_per_node in (("abab", 2), ("aabb", 3)):
        assert all("correct ranks_per_node" in str(e) for e in told(hosts, ranks_per_node))


def test_nodes_that_are_not_known_must_be_told_and_elastic_runs_are_refused(monkeypatch):
    with pytest.raises(InvalidOption, match="ranks_per_node"):
        EXCHANGES.create("hierarchical").placement(0, 4, None)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(InvalidOption, match="elastic"):
        EXCHANGES.create("hierarchical", ranks_per_node=2).placement(0, 4, None)


@pytest.mark.parametrize("exchange", ["gtopk", "auto"])
def test_phases_that_depend_on_the_ranks_are_not_for_elastic_graphs(exchange, monkeypatch):
    frontend = pytest.importorskip("hvd_sparse.tensorflow", exc_type=ImportError)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(InvalidOption, match=f"'{exchange}' in an elastic run.*'allgather'"):
        frontend.Compression.topk([], density=0.1, exchange=exchange)


@pytest.mark.parametrize("id", EXCHANGES)
def test_exchanges_say_whether_their_phases_depend_on_the_number_of_ranks(id):
    exchange, selector = EXCHANGES.create(id), SELECTORS.resolve(TOPK)
    if id != "auto":
        counts = {len(exchange.phases(selector, ranks)) for ranks in range(1, 20)}
        assert exchange.varies_phases == (len(counts) > 1)


def test_on_one_node_hierarchical_is_dense_and_says_so(caplog):
    configuration = worlds.configure(exchange="hierarchical", allow_dense=True, density=0.001)
    specs = worlds.tensors((4_000,))

    def script(collective):
        session = Session(configuration, specs, collective)
        session.reduce(worlds.integers(specs, collective.rank))
        return session.step.stats.report(None)

    reports = LocalWorld(2, worlds.TIMEOUT_S, 2).run(script)
    assert [(r["sparse_steps"], r["dense_steps"]) for r in reports] == [(0, 1)] * 2
    assert "all 2 ranks are on one node, where exchange hierarchical is a dense sum" in caplog.text


def taken(density=0.001, ranks=4, ranks_per_node=1, dtype="float32", **options):
    auto = EXCHANGES.create("auto", ranks_per_node=ranks_per_node, **options.pop("auto", {}))
    parts = {"selector": {"id": "topk", "density": density}, "exchange": auto, **options}
    configuration = Configuration.create(**parts)
    placement = auto.placement(0, ranks, None)
    specs = [TensorSpec("t", (25_000_000,), dtype)]
    return configuration.resolve_exchange(placement, specs, buckets=60).id


def test_auto_takes_what_the_formulas_say_is_quickest():
    assert taken(ranks=2) == "allgather"
    assert taken(ranks=4, density=0.001) == "allgather"
    assert taken(ranks=64, density=0.01) == "oktopk"
    assert taken(ranks=64, density=0.001, auto={"latency_ms": 50.0}) == "allgather"
    assert taken(ranks=8, ranks_per_node=4, density=0.01) == "hierarchical"
    # Entries of float64 have more bytes, so that fewer bytes pay for a second phase.
    assert [taken(ranks=32, dtype=f"float{bits}") for bits in (32, 64)] == ["allgather", "oktopk"]
    # Shared indices where they are shared, and nothing that does not fit.
    draws = {"id": "random_k", "density": 0.01, "shared_seed": True}
    assert taken(ranks=16, selector=draws) == "shared_index"
    assert taken(ranks=16, selector={**draws, "shared_seed": False}) != "shared_index"
    assert taken(ranks=256, selector={"id": "fixed_threshold", "threshold": 1.0}) == "allgather"
    momentum = taken(ranks=8, ranks_per_node=4, density=0.01, memory="momentum_correction")
    assert momentum != "hierarchical"
    one_buffer = taken(ranks=8, ranks_per_node=4, density=0.01, rollback=False)
    assert one_buffer != "hierarchical"


def test_auto_leaves_out_an_exchange_with_a_required_option(monkeypatch):
    monkeypatch.setattr(EXCHANGES, "_classes", dict(EXCHANGES._classes))

    @EXCHANGES.register("tree")
    @dataclass(frozen=True)
    class Tree(type(EXCHANGES.create("allgather"))):
        fan_out: int = option(check_whole, least=2)

    assert taken() == "allgather"


def test_after_the_ranks_of_a_run_have_changed_auto_chooses_anew(make):
    """As a worker that joins does, with which the others compare their nodes."""
    compressor = make(worlds.configure(exchange={"id": "auto", "latency_ms": 1e-9}))
    assert compressor.stats()["exchange"]["id"] == "allgather"
    nodes, compared = tuple(range(64)), []
    compressor.collective = SimpleNamespace(rank=0, world_size=64, nodes=nodes)
    compressor.watchdog = mock.Mock(rank=-1)
    compressor._meet = lambda: compared.append(compressor._describe(compressor.step.specs))
    compressor.rejoin()
    assert compared[0]["nodes"] == list(nodes)
    assert compressor.stats()["exchange"]["id"] == "oktopk"


@pytest.mark.parametrize(
    ("exchange", "parts", "words"),
    [
        ("gtopk", {"selector": {"id": "fixed_threshold", "threshold": 1.0}}, "has none"),
        ("oktopk", {"selector": {"id": "adacomp"}}, "has none"),
        ("shared_index", {"selector": {"id": "stc", "density": 0.1}}, "sends other values"),
        ("hierarchical", {"memory": "momentum_correction"}, "error_feedback', without optimizer="),
        ("hierarchical", {"rollback": False}, "leave out rollback=False"),
        ("oktopk", {"memory": {"id": "error_feedback", "residual": "bfloat16"}}, "rounded"),
    ],
    ids=str,
)
def test_what_an_exchange_cannot_do_is_refused_by_what_parts_declare(exchange, parts, words):
    with pytest.raises(InvalidOption, match=words):
        Configuration.create(**{"selector": TOPK, **parts}, exchange=exchange)


# -- frames and messages --------------------------------------------------------------------------

TEN = np.arange(10, dtype=np.float32)
TEN_BYTES, TWO_BYTES = TEN.tobytes(), struct.pack("<II", 3, 7)


def as_values(body=TEN_BYTES, codec=VALUES, count=10, behind=0, **header):
    frame = forged(body, codec=codec, count=count, **header)
    return read_values(np.append(frame, np.zeros(behind, np.uint8)), 10, np.float32)


def as_indices(body=TWO_BYTES, count=2, **header):
    return read_indices(forged(body, codec=INDICES, count=count, **header), 10)


def test_values_and_indices_as_ranks_write_them_are_read():
    """Or the test below could pass for the wrong reason."""
    assert as_values().tolist() == TEN.tolist() and as_indices().tolist() == [3, 7]


@pytest.mark.parametrize(
    ("read", "changes"),
    [
        (as_values, {"body": TEN[:3].tobytes(), "count": 3}),
        (as_values, {"body": TEN[:9].tobytes()}),
        (as_values, {"behind": 1}),
        (as_values, {"body": np.arange(10.0).tobytes(), "value_type": 2}),
        (as_values, {"value_format": 1}),
        (as_values, {"codec": INDICES}),
        (as_values, {"numel": 11}),
        (as_indices, {"count": 3}),
        (as_indices, {"body": struct.pack("<II", 3, 3)}),
        (as_indices, {"body": struct.pack("<II", 3, 10)}),
        (as_indices, {"value_format": 2}),
    ],
)
def test_values_and_indices_that_no_rank_writes_are_refused(read, changes):
    with pytest.raises(CorruptPayload):
        read(**changes)


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
    words = "come to .* bytes in one collective, which moves at most .*: send fewer entries"

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
        with pytest.raises(PeerFailure, match=words):
            session.reduce(integers(collective.rank, 1))
        meet("after")
        if collective.rank == 0:
            monkeypatch.undo()
        meet("again")
        assert worlds.bits_of(worlds.residuals(session)) == before
        reduced = session.reduce(integers(collective.rank, 1))
        return all(np.isfinite(array).all() for array in reduced.values())

    assert worlds.run(4, script) == [True] * 4
