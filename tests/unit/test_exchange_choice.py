"""The nodes of ranks, the choice of ``auto``, and parts that an exchange refuses."""

import re
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import worlds

from hvd_sparse.collectives.contract import ProcessSetRanks
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.kernels import reference
from hvd_sparse.registry import EXCHANGES, SELECTORS
from hvd_sparse.step import handshake
from hvd_sparse.step.driver import Driver
from hvd_sparse.step.session import Session
from hvd_sparse.step.step import Step

TOPK = {"id": "topk", "density": 0.001}


@pytest.mark.parametrize("exchange", ["hierarchical", "auto"])
def test_a_rank_outside_of_the_process_set_has_no_placement(exchange):
    others = mock.Mock(spec=["ranks", "rank", "size"], ranks=[1, 2], size=lambda: 2)
    others.rank.side_effect = ValueError("Process is not part of provided process set.")
    specs, configuration = worlds.tensors((12,)), worlds.configure(exchange=exchange)
    step = Step(configuration, specs, [(0,)], reference)
    Driver(step, ProcessSetRanks(others), "x")
    assert step.placement is None


def test_ranks_that_disagree_on_where_they_are_are_refused_by_all():
    configuration, specs = worlds.configure(exchange="hierarchical"), worlds.tensors((12,))

    def script(collective):
        there = worlds.Around(collective, lambda kind, arguments, call: call())
        there.nodes = (0, 0) if collective.rank else (0, 1)
        Session(configuration, specs, there)

    errors = LocalWorld(2, worlds.TIMEOUT_S).run_all(script)
    assert [type(error) for error in errors] == [RankMismatch] * 2


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


def taken(density=0.001, ranks=4, ranks_per_node=1, **options):
    auto = EXCHANGES.create("auto", ranks_per_node=ranks_per_node, **options.pop("auto", {}))
    parts = {"selector": {"id": "topk", "density": density}, "exchange": auto, **options}
    configuration = Configuration.create(**parts)
    placement = auto.placement(0, ranks, None)
    return configuration.resolve_exchange(placement, numel=25_000_000, buckets=60).id


def test_auto_takes_what_the_formulas_say_is_quickest():
    assert taken(ranks=2) == "allgather"
    assert taken(ranks=4, density=0.001) == "allgather"
    assert taken(ranks=64, density=0.01) == "oktopk"
    assert taken(ranks=64, density=0.001, auto={"latency_ms": 50.0}) == "allgather"
    assert taken(ranks=8, ranks_per_node=4, density=0.01) == "hierarchical"
    # Shared indices where they are shared, and nothing that does not fit.
    draws = {"id": "random_k", "density": 0.01, "shared_seed": True}
    assert taken(ranks=16, selector=draws) == "shared_index"
    assert taken(ranks=16, selector={**draws, "shared_seed": False}) != "shared_index"
    assert taken(ranks=256, selector={"id": "fixed_threshold", "threshold": 1.0}) == "allgather"
    momentum = taken(ranks=8, ranks_per_node=4, density=0.01, memory="momentum_correction")
    assert momentum != "hierarchical"
    one_buffer = taken(ranks=8, ranks_per_node=4, density=0.01, rollback=False)
    assert one_buffer != "hierarchical"


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


FIXED = {"id": "fixed_threshold", "threshold": 1.0}
HALF = {"id": "error_feedback", "residual": "bfloat16"}


@pytest.mark.parametrize(
    ("exchange", "parts", "words"),
    [
        ("gtopk", {"selector": FIXED}, "has none"),
        ("oktopk", {"selector": {"id": "adacomp"}}, "has none"),
        ("shared_index", {"selector": {"id": "stc", "density": 0.1}}, "sends other values"),
        ("hierarchical", {"memory": "momentum_correction"}, "before they are added to the resid"),
        ("hierarchical", {"rollback": False}, "leave out rollback=False"),
        ("oktopk", {"memory": HALF}, "rounded"),
    ],
    ids=str,
)
def test_what_an_exchange_cannot_do_is_refused_by_what_parts_declare(exchange, parts, words):
    with pytest.raises(InvalidOption, match=words):
        Configuration.create(**{"selector": TOPK, **parts}, exchange=exchange)
