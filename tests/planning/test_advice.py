"""Advice: never slower than what needs no compression, and honest about it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.autotune.costmodel import Layer, Profile
from hvd_sparse.autotune.costmodel.advice import AS_GOOD, MARGIN, advise
from hvd_sparse.autotune.costmodel.architectures import replayed
from hvd_sparse.autotune.costmodel.costs import Line, MeasuredWire, Work
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.errors import InvalidOption

RESNET = replayed("resnet50", 0.08)
SMALL = Profile(
    (Layer("c", 300_000, 2e-3), Layer("b", 400, 0.0, False), Layer("a", 2_000_000, 3e-3)), 2e-3
)


def on(bandwidth_bit_s, ranks=4, latency_s=5e-5, ranks_per_node=1, work=CPU):
    return Setting.on(Network(bandwidth_bit_s, latency_s, ranks_per_node), ranks, work)


@given(
    st.floats(6, 12),
    st.integers(2, 64),
    st.floats(0, 1e-2),
    st.sampled_from([1, 2, 8]),
    st.floats(0, 100),
    st.lists(st.sampled_from([0.001, 0.01, 0.1, 1.0]), min_size=1, max_size=2, unique=True),
)
def test_advice_is_never_slower_than_dense_or_fp16(
    power, ranks, latency_s, per_node, slowness, densities
):
    work = Work(
        **{name: slowness * value for name, value in vars(CPU).items() if name != "exchanges"}
    )
    where = on(10**power, ranks, latency_s, per_node, work)
    found = advise(SMALL, where, densities=densities, codecs=["index_value"])
    better = min(found.dense.step_s, found.fp16.step_s)
    assert found.step_s <= found.dense.step_s and found.step_s <= AS_GOOD * found.fp16.step_s
    if found.choice == "sparse":
        assert found.chosen in found.candidates
        assert (
            found.chosen.prediction.step_s * MARGIN <= better
            and not found.chosen.prediction.goes_dense
        )
        assert found.sentence.startswith("Compress: ")
    else:
        assert found.chosen is None
        assert found.sentence.startswith(f"Compression will not help here: use {found.choice}.")
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "setting", [on(1e11), on(4e10, ranks=2), on(1e9, ranks=1)], ids=["100G", "40G", "alone"]
)
def test_dense_wins_where_fp16_is_no_quicker_as_anybody_would_see_it(setting):
    found = advise(
        RESNET, setting, densities=[0.001], codecs=["index_value"], exchange_ids=["allgather"]
    )
    assert found.fp16.step_s <= found.dense.step_s <= AS_GOOD * found.fp16.step_s
    assert found.choice == "dense" and found.step_s == found.dense.step_s
    assert "use dense." in found.sentence and "of dense's step" in found.sentence


def test_fp16_wins_where_it_is_quicker_and_compressing_is_not():
    found = advise(
        RESNET, on(1e10), densities=[0.001], codecs=["index_value"], exchange_ids=["allgather"]
    )
    assert found.dense.step_s > AS_GOOD * found.fp16.step_s
    assert (
        found.choice == "fp16"
        and "use fp16." in found.sentence
        and "of fp16's step" in found.sentence
    )


def test_a_slow_network_is_worth_compressing_for_and_a_fast_one_is_not():
    assert advise(RESNET, on(1e8)).choice == "sparse"
    fast = advise(RESNET, on(1e11))
    assert fast.choice in ("dense", "fp16") and "will not help" in fast.sentence


def test_below_the_crossover_compressing_is_quicker_and_above_it_is_not():
    found = advise(
        RESNET, on(1e9), densities=[0.001], codecs=["index_value"], exchange_ids=["allgather"]
    )
    crossover = found.crossover_bit_s
    assert 1e9 < crossover < 1e11
    for factor, pays in ((0.8, True), (1.2, False)):
        there = advise(
            RESNET,
            on(factor * crossover),
            densities=[0.001],
            codecs=["index_value"],
            exchange_ids=["allgather"],
        )
        better = min(there.dense.step_s, there.fp16.step_s)
        assert (there.candidates[0].prediction.step_s < better) is pays


def test_where_computing_costs_too_much_no_bandwidth_helps_and_where_it_is_free_all_do():
    slow = advise(SMALL, on(1e9, work=Work(call_s=1e3)))
    assert slow.crossover_bit_s == 0.0 and "No bandwidth" in slow.sentence
    free = Setting.on(Network(1e9, 0.0, call_s=0.0), 4, Work())
    always = advise(SMALL, free)
    assert always.crossover_bit_s > 1e10 and always.choice == "sparse"


def test_of_ways_that_are_as_quick_the_one_that_sends_most_is_advised():
    found = advise(RESNET, on(1e9, work=Work()), densities=[0.001, 0.002])
    assert found.chosen.density == 0.002
    assert found.candidates[0].prediction.step_s <= found.chosen.prediction.step_s


def test_no_exchange_that_assumes_something_about_gradients_is_advised_unasked():
    exchanges = {candidate.exchange for candidate in advise(RESNET, on(1e9)).candidates}
    assert exchanges == {"allgather", "gtopk", "oktopk"}
    asked = advise(RESNET, on(1e9), exchange_ids=["shared_index"])
    assert {candidate.exchange for candidate in asked.candidates} == {"shared_index"}
    assert "hierarchical" in {
        c.exchange for c in advise(RESNET, on(1e9, 16, ranks_per_node=4)).candidates
    }


def test_the_plan_is_told_by_names_in_the_order_of_the_backward_pass():
    found = advise(RESNET, on(1e9), densities=[0.001], codecs=["index_value"])
    names = [name for group in found.groups for name in group]
    assert names == [layer.name for layer in RESNET.compressed.layers]
    assert found.strategies["exact"] == pytest.approx(found.chosen.prediction.step_s)
    assert found.strategies["exact"] <= min(found.strategies.values()) * (1 + 1e-9)


def test_a_measured_network_has_no_crossover():
    line = Line(1e-3, 8e-9)
    wire = MeasuredWire({"allgather": line, "allreduce": line, "alltoall": line})
    found = advise(RESNET, Setting(in_nodes_of(1, 0, 3), wire, CPU))
    assert (
        found.crossover_bit_s is None
        and found.choice == "sparse"
        and "It pays" not in found.sentence
    )


@pytest.mark.parametrize(
    "options", [{"margin": 0.9}, {"margin": math.nan}, {"exchange_ids": []}, {"densities": []}]
)
def test_what_leaves_nothing_to_advise_is_refused(options):
    with pytest.raises(InvalidOption):
        advise(SMALL, on(1e9), **options)
