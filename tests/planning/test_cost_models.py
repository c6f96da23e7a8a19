"""Lines fitted to noisy messages, the cost of computing, published constants, and collectives on
described networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.autotune.costmodel.costs import Line, MeasuredWire, Work, fit_line, fit_work
from hvd_sparse.autotune.costmodel.network import MeasuredNetwork, Network, Setting
from hvd_sparse.autotune.costmodel.published import CPU, NETWORKS, P102_100, network, with_codec
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.errors import InvalidOption, UnknownName
from hvd_sparse.registry import CODECS

SIZES = tuple(float(2**power) for power in range(8, 27, 2))


def messages(line: Line, rng: np.random.Generator, repeats: int = 9) -> list[tuple[float, float]]:
    """With 3 % of noise, one in nine held up by up to a second."""
    found = []
    for size in SIZES:
        times = line(size) * (1 + 0.03 * rng.standard_normal(repeats))
        times[0] += rng.uniform(0.01, 1)
        found += [(size, float(abs(seconds))) for seconds in times]
    return found


@given(st.integers(0, 2**32 - 1), st.floats(1e-5, 1e-2), st.floats(1e-10, 1e-7))
def test_a_line_is_found_in_noise_and_outliers(seed, start_s, byte_s):
    fitted = fit_line(messages(Line(start_s, byte_s), np.random.default_rng(seed)))
    assert fitted.start_s == pytest.approx(start_s, rel=0.15)
    for size in SIZES:
        assert fitted(size) == pytest.approx(Line(start_s, byte_s)(size), rel=0.15)


def test_a_line_without_noise_is_found_exactly_in_any_order():
    line = Line(2e-3, 1e-8)
    samples = [(size, line(size)) for size in SIZES]
    for order in (samples, samples[::-1]):
        fitted = fit_line(order)
        assert (fitted.start_s, fitted.byte_s) == (pytest.approx(2e-3), pytest.approx(1e-8))


def test_times_that_fall_with_size_give_no_negative_cost():
    fitted = fit_line([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])
    assert fitted.byte_s == 0.0 and 1.0 <= fitted.start_s <= 3.0


@pytest.mark.parametrize(
    "samples", [[], [(1.0, 1.0)] * 5, [(1.0, -1.0), (2.0, 1.0)], [(1.0, float("nan")), (2.0, 1.0)]]
)
def test_samples_that_make_no_line_are_refused(samples):
    with pytest.raises(InvalidOption):
        fit_line(samples)


def test_selecting_costs_what_it_says():
    assert Work(call_s=1.0, entry_s=2.0).select_s(5) == 11.0
    assert Work(sort_s=1.0).select_s(8) == 24.0
    assert list(CPU.select_s(np.array([0, 1]))) == [0.0, CPU.call_s + CPU.entry_s]
    assert Work(dense_s=2.0, received_s=3.0).settle_s(10, 4) == 32.0
    assert P102_100.select_s(2**20) == pytest.approx(2.18896957e-10 * 20 * 2**20)


@given(st.lists(st.integers(1, 10**7), min_size=2, max_size=5))
def test_the_authors_selection_is_dearer_when_merged_and_their_messages_cheaper(sizes):
    apart = sum(float(P102_100.select_s(size)) for size in sizes)
    assert float(P102_100.select_s(sum(sizes))) >= apart * (1 - 1e-12)
    line = network("omgs-1gbe", 4)
    assert line(sum(sizes)) < sum(line(size) for size in sizes)


@pytest.mark.parametrize("name", NETWORKS)
def test_published_lines_go_through_their_tables_and_on(name):
    for ranks, (start_s, byte_s) in NETWORKS[name].items():
        found = network(name, ranks)
        assert (found.start_s, found.byte_s) == (pytest.approx(start_s), pytest.approx(byte_s))
    starts = [network(name, ranks).start_s for ranks in (2, 3, 5, 12, 16, 64, 1000)]
    assert starts == sorted(starts) and starts[-1] > starts[-2]
    assert network("omgs-1gbe", 3).start_s == pytest.approx((1.6e-3 + 2.7e-3) / 2)


def test_unknown_networks_and_bad_costs_are_refused():
    with pytest.raises(UnknownName, match="omgs-1gbe"):
        network("token-ring", 4)
    for wrong in (
        lambda: Line(-1.0, 0.0),
        lambda: Work(entry_s=float("nan")),
        lambda: Network(0, 1e-3),
    ):
        with pytest.raises(InvalidOption):
            wrong()


def test_another_codec_costs_what_it_takes_beyond_the_usual_one():
    measured = Work(sent_s=1e-8, received_s=2e-8, entry_s=1.0)
    golomb = with_codec(measured, CODECS.create("golomb"))
    assert golomb.sent_s == pytest.approx(1e-8 + 11.8e-9 - 0.9e-9)
    assert golomb.received_s == pytest.approx(2e-8 + 21.7e-9 - 1.8e-9)
    assert golomb.entry_s == 1.0
    assert with_codec(measured, CODECS.create("index_value")) == measured
    assert with_codec(Work(), CODECS.create("block16")).sent_s == pytest.approx(0.5e-9)


def test_collectives_start_by_their_hops():
    flat = Network(1e9, 1e-3, call_s=0.0)
    placement = flat.placement(8)
    assert placement.node_count == 8
    assert flat.line("allgather", placement) == Line(7e-3, 8e-9)
    assert flat.line("allreduce", placement) == Line(14e-3, 8e-9)
    assert flat.line("alltoall", placement) == Line(1e-3, 8e-9)
    tree = Network(1e9, 1e-3, call_s=0.5, hops="tree")
    assert tree.line("allgather", placement).start_s == pytest.approx(0.503)


def test_a_ring_through_nodes_passes_all_of_their_ranks():
    nodes = Network(1e9, 1e-3, 4, local_latency_s=1e-6, call_s=0.0)
    placement = nodes.placement(8)
    assert placement == in_nodes_of(4, 0, 8)
    assert nodes.line("allgather", placement).start_s == pytest.approx(1e-3 + 6e-6)


def test_ranks_that_share_one_node_use_its_own_links():
    nodes = Network(1e9, 1e-3, 4, local_bandwidth_bit_s=8e9, local_latency_s=1e-6, call_s=0.0)
    setting = Setting.on(nodes, 4, CPU)
    assert setting.placement.node_count == 4
    line = setting.wire.line("allgather", setting.placement)
    assert (line.start_s, line.byte_s) == (pytest.approx(3e-6), 1e-9)


def test_what_was_not_measured_is_not_guessed():
    wire = MeasuredWire({"allgather": Line(1.0, 1.0)})
    assert wire.line("allgather", None) == Line(1.0, 1.0)
    with pytest.raises(InvalidOption, match="allreduce was not measured; there are: allgather"):
        wire.line("allreduce", None)


def work_samples(work, messages, density):
    """What selecting and settling take, for tensors of three sizes."""
    sizes = [2**14, 2**17, 2**20]
    select = [(n, float(work.select_s(n)) + work.sent_s * density * n) for n in sizes]
    return select, [(n, work.settle_s(n, density * n * messages)) for n in sizes]


@given(
    st.tuples(*[st.floats(1e-10, 1e-7)] * 4),
    st.floats(0, 1e-3),
    st.integers(1, 64),
    st.floats(1.5, 100),
)
def test_work_is_found_again_from_what_two_densities_take(parts, call_s, messages, apart):
    entry_s, sent_s, dense_s, received_s = parts
    work = Work(
        call_s=call_s, entry_s=entry_s, sent_s=sent_s, dense_s=dense_s, received_s=received_s
    )
    low, high = work_samples(work, messages, 0.001), work_samples(work, messages, 0.001 * apart)
    found = fit_work(
        {0.001 * apart: high[0], 0.001: low[0]}, {0.001 * apart: high[1], 0.001: low[1]}, messages
    )
    wanted = work.to_dict()
    for (
        name,
        value,
    ) in (
        found.to_dict().items()
    ):  # sent_s is told apart from entry_s only as far as rounding lets it
        assert value == pytest.approx(wanted[name], rel=1e-3, abs=1e-12), name


def test_work_that_gets_quicker_with_more_entries_costs_nothing_for_them():
    flat = ((1, 1.0), (2, 1.0))
    found = fit_work(
        {0.001: [(1, 2.0), (2, 4.0)], 0.01: [(1, 1.0), (2, 2.0)]}, {0.001: flat, 0.01: flat}, 2
    )
    assert (found.sent_s, found.entry_s, found.received_s, found.dense_s) == (0.0, 2.0, 0.0, 0.0)


@pytest.mark.parametrize("densities", [(0.1,), (0.1, 0.2, 0.3)])
def test_work_is_fitted_from_two_densities(densities):
    samples = dict.fromkeys(densities, ((1, 1.0), (2, 2.0)))
    with pytest.raises(InvalidOption, match="two, and the same"):
        fit_work(samples, samples, 2)
    with pytest.raises(InvalidOption, match="two, and the same"):
        fit_work({0.1: samples[0.1], 0.5: samples[0.1]}, {0.1: samples[0.1], 0.6: samples[0.1]}, 2)


LINES = {
    "allgather": Line(2e-3, 1e-8),
    "allreduce": Line(2.5e-3, 9e-9),
    "alltoall": Line(1e-3, 2e-8),
}


def test_measured_lines_hold_on_as_many_ranks_and_start_later_on_more():
    network = MeasuredNetwork(LINES, 2)
    assert network.latency_s == pytest.approx(0.5e-3)
    few, many = network.placement(2), network.placement(5)
    assert all(network.line(kind, few) == line for kind, line in LINES.items())
    assert vars(network.line("allgather", many)) == pytest.approx(
        {"start_s": 2e-3 + 3 * 0.5e-3, "byte_s": 1e-8}
    )
    assert vars(network.line("allreduce", many)) == pytest.approx(
        {"start_s": 2.5e-3 + 2 * 3 * 0.5e-3, "byte_s": 9e-9}
    )
    assert network.line("alltoall", many) == network.local_line(many) == LINES["alltoall"]
    tree = MeasuredNetwork(LINES, 2, hops="tree")
    assert tree.line("allgather", network.placement(16)).start_s == pytest.approx(2e-3 + 3 * 0.5e-3)


def test_lines_of_an_unknown_number_of_ranks_hold_for_any():
    network = MeasuredNetwork(LINES)
    assert network.line("allreduce", network.placement(64)) == LINES["allreduce"]
    slower = MeasuredNetwork({**LINES, "allgather": Line(4e-3, 1e-8)}, 2)
    assert slower.latency_s == 0.0


@pytest.mark.parametrize("world_size", [1, 2.5, True, "2"])
def test_a_number_of_ranks_on_which_nothing_can_be_measured_is_refused(world_size):
    with pytest.raises(InvalidOption, match="world_size of MeasuredNetwork"):
        MeasuredNetwork(LINES, world_size)
