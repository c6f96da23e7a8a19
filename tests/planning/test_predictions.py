"""Predicted steps: by the exchanges' own formulas, in the order in which their collectives run;
simulated scaling."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hvd_sparse.autotune.costmodel import Layer, Profile
from hvd_sparse.autotune.costmodel.architectures import replayed
from hvd_sparse.autotune.costmodel.costs import Line, MeasuredWire, Work
from hvd_sparse.autotune.costmodel.densities import hiding_densities
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.planner import best
from hvd_sparse.autotune.costmodel.predict import (
    dense_instance,
    dense_step,
    sparse_instance,
    sparse_step,
)
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.autotune.costmodel.simulation import simulate
from hvd_sparse.autotune.costmodel.strategies import no_merge
from hvd_sparse.autotune.costmodel.timeline import end_s, evaluate
from hvd_sparse.autotune.costmodel.volumes import exchange_of
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.wire.message import overhead_bytes
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import dense_inbound
from hvd_sparse.registry import EXCHANGES

PROFILE = Profile(
    (
        Layer("d", 10_000, 1e-3),
        Layer("c", 500, 1e-3, False),
        Layer("b", 40_000, 2e-3),
        Layer("a", 20_000, 4e-3),
    ),
    5e-3,
)
WIRE = MeasuredWire(
    {"allgather": Line(1e-3, 1e-8), "allreduce": Line(2e-3, 1e-8), "alltoall": Line(3e-3, 1e-8)}
)
RUN = [id for id in EXCHANGES if id != "auto"]


def configure(exchange="allgather", density=0.01, selector="topk", **options):
    if exchange == "hierarchical":
        exchange = {"id": exchange, "ranks_per_node": 2}
    return Configuration.create(
        selector={"id": selector, "density": density}, exchange=exchange, **options
    )


def setting(exchange="allgather", ranks=4, work=CPU, wire=WIRE):
    return Setting(in_nodes_of(2 if exchange == "hierarchical" else 1, 0, ranks), wire, work)


@pytest.mark.parametrize("exchange", RUN)
def test_a_step_brings_the_bytes_that_the_exchange_declares(exchange):
    where, configuration = setting(exchange), configure(exchange)
    instance = sparse_instance(PROFILE, configuration, where)
    brought = np.sum(instance.late_nbytes) + (
        0 if configuration.exchange.sums_first else np.sum(instance.nbytes)
    )
    declared = sum(
        configuration.exchange.inbound(
            0.01, configuration.codec.entry_bytes(layer.numel, 0.01), where.placement
        )
        * layer.numel
        for layer in PROFILE.compressed.layers
    )
    assert brought == pytest.approx(declared)


@pytest.mark.parametrize("exchange", RUN)
def test_every_collective_starts_once_a_group_and_all_but_the_first_come_late(exchange):
    configuration, where = configure(exchange), setting(exchange)
    instance = sparse_instance(PROFILE, configuration, where)
    phases = configuration.exchange.phases(configuration.selector, 4)
    header_s = overhead_bytes(1) * 3 * 1e-8
    first = WIRE.lines[phases[0]].start_s + (0 if configuration.exchange.sums_first else header_s)
    assert instance.wire.start_s == pytest.approx(first)
    assert instance.late.start_s == pytest.approx(
        sum(WIRE.lines[kind].start_s + header_s for kind in phases[1:])
    )


def test_two_level_sums_stay_inside_the_nodes_and_divide_the_selection():
    instance = sparse_instance(PROFILE, configure("hierarchical"), setting("hierarchical"))
    numel = np.array([10_000, 40_000, 20_000])
    assert list(instance.nbytes) == list(4 * numel / 2)
    assert list(instance.numel) == list(numel / 2)


def test_dense_moves_what_a_ring_moves_and_fp16_half_of_it():
    where = setting()
    dense, fp16 = dense_instance(PROFILE, where), dense_instance(PROFILE, where, 2)
    assert np.sum(dense.nbytes) == pytest.approx(dense_inbound(where.placement) * PROFILE.numel)
    assert np.sum(fp16.nbytes) == pytest.approx(np.sum(dense.nbytes) / 2)
    assert dense_step(PROFILE, where, 2).step_s < dense_step(PROFILE, where).step_s


def test_sums_of_float16_have_a_line_of_their_own_where_it_was_measured():
    slow = MeasuredWire({**WIRE.lines, "allreduce_fp16": Line(2e-3, 3e-8)})
    assert (
        dense_step(PROFILE, setting(wire=slow), 2).step_s
        > dense_step(PROFILE, setting(wire=slow)).step_s
    )
    assert dense_instance(PROFILE, setting(), 2).wire == WIRE.lines["allreduce"]
    network = Network(1e9, 5e-5)
    assert network.line("allreduce_fp16", setting().placement) == network.line(
        "allreduce", setting().placement
    )


def test_a_backward_pass_apart_hides_what_is_selected_meanwhile():
    work = Work(call_s=0.5e-3)
    held_up, apart = (
        sparse_step(profile, configure(density=0.001), setting(work=work))
        for profile in (PROFILE, replace(PROFILE, is_apart=True))
    )
    # three compressed layers; the gradient of the last comes when the others have long been
    # selected from
    assert held_up.compute_s == pytest.approx(5e-3 + 8e-3 + 3 * 0.5e-3)
    assert apart.compute_s == pytest.approx(5e-3 + 8e-3 + 0.5e-3)
    slow = sparse_step(
        replace(PROFILE, is_apart=True), configure(density=0.001), setting(work=Work(call_s=0.1))
    )
    assert slow.compute_s == pytest.approx(5e-3 + 1e-3 + 3 * 0.1)


def test_tensors_that_go_dense_are_handed_over_and_taken_back():
    """By a compressor, that leaves them as they are, or without one."""
    work = Work(
        tensor_s=1e-3, submit_s=2e-3, collect_s=4e-3, dense_submit_s=1e-3, dense_collect_s=3e-3
    )
    found, free = (
        sparse_step(PROFILE, configure(density=0.001), setting(work=each))
        for each in (work, Work())
    )
    assert found.compute_s == pytest.approx(free.compute_s + 2e-3)
    assert found.settle_s == pytest.approx(3 * 1e-3 + 4e-3)
    dense, quick = (dense_step(PROFILE, setting(work=each)) for each in (work, Work()))
    assert dense.compute_s == pytest.approx(quick.compute_s + 4 * 1e-3)
    assert dense.settle_s == pytest.approx(4 * 3e-3)


@pytest.mark.parametrize(
    ("exchange", "rounds"), [("allgather", 0), ("shared_index", 0), ("oktopk", 1), ("gtopk", 2)]
)
def test_exchanges_that_sum_on_the_way_code_once_more(exchange, rounds):
    found = sparse_step(
        PROFILE, configure(exchange), setting(work=Work(sent_s=1e-5, tensor_s=1e-3))
    )
    sent = 700
    assert found.settle_s == pytest.approx(3 * 1e-3 + rounds * (sent * 1e-5 + 3 * 1e-3))


def test_the_parts_of_a_step_are_its_sum():
    found = sparse_step(PROFILE, configure(density=0.001), setting())
    assert found.step_s == pytest.approx(found.compute_s + found.waiting_s + found.settle_s)
    assert found.compute_s > PROFILE.other_s + PROFILE.backward_s
    instance = sparse_instance(PROFILE, configure(density=0.001), setting())
    carriers_s = (
        WIRE.lines["allreduce"](500 * dense_inbound(setting().placement))
        + WIRE.lines["allreduce"].start_s
    )
    assert found.compute_s + found.waiting_s == pytest.approx(
        PROFILE.other_s + end_s(instance, found.plan) + carriers_s
    )
    received = 3 * 70 + 70
    assert found.settle_s == pytest.approx(CPU.settle_s(70_000, received))


def test_a_density_at_which_the_compressor_goes_dense_takes_as_long_as_dense():
    found = sparse_step(PROFILE, configure(density=0.5), setting())
    assert found.goes_dense and found.step_s == dense_step(PROFILE, setting()).step_s
    assert not sparse_step(PROFILE, configure(density=0.5, allow_dense=False), setting()).goes_dense


def test_auto_is_predicted_as_what_it_chooses():
    configuration = configure("auto")
    chosen = exchange_of(configuration, PROFILE, setting())
    assert chosen.id in RUN
    assert sparse_step(PROFILE, configuration, setting()) == sparse_step(
        PROFILE, configure(chosen.id), setting()
    )


def test_a_method_that_is_told_no_density_cannot_be_predicted():
    configuration = Configuration.create(selector={"id": "fixed_threshold", "threshold": 1.0})
    with pytest.raises(InvalidOption, match="fixed_threshold is told no density"):
        sparse_step(PROFILE, configuration, setting())


def test_densities_of_layers_are_counted_one_by_one():
    instance = sparse_instance(PROFILE, configure(), setting(), densities=[0.001, 0.01, 0.1])
    assert list(instance.sent) == [10, 400, 2000]
    with pytest.raises(InvalidOption, match="2 densities for 3 compressed layers"):
        sparse_instance(PROFILE, configure(), setting(), densities=[0.1, 0.1])


def test_layers_send_the_most_that_hides_behind_the_rest_of_the_backward_pass():
    where, configuration = Setting.on(Network(1e9, 5e-5, call_s=1e-4), 4, CPU), configure()
    profile = replayed("resnet50", 0.08)
    size = len(profile.compressed.layers)
    apart = tuple(range(1, size + 1))
    found = hiding_densities(profile, configuration, where, apart, 1e-4, 0.1)
    assert found[-1] == 1e-4 and max(found) == 0.1 and len(found) == size
    instance = sparse_instance(profile, configuration, where, densities=found)
    more = sparse_instance(
        profile, configuration, where, densities=[min(0.1, 1.2 * d) for d in found]
    )
    least = sparse_instance(profile, configuration, where, densities=[1e-4] * size)
    ready_s = np.cumsum([float(least.compute_s(i, i + 1)) for i in range(size)])
    free_s = 0.0
    for i in range(size - 1):
        sends_s = max(free_s, ready_s[i])
        free_s = sends_s + float(instance.wire_s(i, i + 1))
        assert free_s <= ready_s[i + 1] or found[i] == 1e-4
        assert sends_s + float(more.wire_s(i, i + 1)) > ready_s[i + 1] or found[i] == 0.1


def test_groups_have_one_density_and_a_single_group_the_least():
    where, profile = Setting.on(Network(1e9, 5e-5), 4, CPU), replayed("resnet50", 0.08)
    plan = best(sparse_instance(profile, configure(), where))
    found = hiding_densities(profile, configure(), where, plan, 0.001, 0.1)
    for start, stop in zip((0, *plan[:-1]), plan):
        assert len(set(found[start:stop])) == 1
    assert set(hiding_densities(profile, configure(), where, (plan[-1],), 0.001, 0.1)) == {0.001}


@pytest.mark.parametrize(
    ("exchange", "low", "high"),
    [("gtopk", 0.001, 0.1), ("allgather", 0.1, 0.01), ("allgather", 0, 1)],
)
def test_densities_that_nothing_hides_or_that_are_none_are_refused(exchange, low, high):
    with pytest.raises(InvalidOption):
        hiding_densities(PROFILE, configure(exchange), setting(), (3,), low, high)


def test_the_two_level_exchange_declares_what_stays_inside():
    exchange = EXCHANGES.create("hierarchical", ranks_per_node=2)
    assert exchange.inside(in_nodes_of(4, 0, 16)) == 3.0
    assert all(
        EXCHANGES.create(id).inside(in_nodes_of(4, 0, 16)) == 0.0
        for id in EXCHANGES
        if id != "hierarchical"
    )


@pytest.fixture(scope="module")
def points():
    networks = {"flat": Network(1e9, 5e-5), "nodes": Network(1e9, 5e-5, 4)}
    return list(simulate(PROFILE, networks, Work(), density=0.001, world_sizes=(2, 4, 16, 64)))


def test_every_exchange_is_simulated_where_it_fits(points):
    methods = {
        (p.network, p.ranks): {
            q.method for q in points if (q.network, q.ranks) == (p.network, p.ranks)
        }
        for p in points
    }
    assert methods["flat", 64] == {"dense", "fp16", *RUN} - {"hierarchical"}
    assert methods["nodes", 64] == {"dense", "fp16", *RUN}
    assert "hierarchical" not in methods["nodes", 4]


def test_efficiency_is_what_is_left_of_a_rank(points):
    for point in points:
        assert 0 < point.efficiency <= 1 + 1e-12
        assert point.efficiency * point.prediction.step_s == pytest.approx(
            PROFILE.other_s + PROFILE.backward_s
        )
    assert json.loads(json.dumps([point.to_dict() for point in points]))


def test_gathering_takes_longer_the_more_ranks_there_are(points):
    steps = [p.prediction.step_s for p in points if (p.network, p.method) == ("flat", "allgather")]
    assert steps == sorted(steps)


def test_a_timeline_of_a_prediction_is_its_plan():
    instance = sparse_instance(PROFILE, configure(), setting())
    found = sparse_step(PROFILE, configure(), setting(), strategy=no_merge)
    assert found.plan == (1, 2, 3)
    assert [span.stop for span in evaluate(instance, found.plan).spans] == [1, 2, 3]
