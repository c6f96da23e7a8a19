"""Groups change nothing but the number of messages, unless one selection is made of a group."""

import math
import tracemalloc
from dataclasses import dataclass, replace
from typing import ClassVar
from unittest import mock

import cases
import numpy as np
import pytest
import worlds
from hypothesis import example, given
from hypothesis import strategies as st
from unit.merged import KEYS, MERGED, NUMEL, SPECS, bits, configure, lost, train

from hvd_sparse.checks import count_from_density
from hvd_sparse.errors import InvalidOption, PeerFailure
from hvd_sparse.registry import CODECS, EXCHANGES, MEMORIES, SELECTORS
from hvd_sparse.selectors.topk import TopK
from hvd_sparse.step.buckets import grouped, merge_small, one_per_tensor
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

PLANS = [1, 1, [["t0", "t3"], ["t1", "t2", "t4"]], 2, 50, [["t0", "t4"]], 1, 1]


@pytest.mark.parametrize("case", MERGED, ids=str)
@pytest.mark.parametrize("plans", [(), PLANS], ids=["one plan", "many plans"])
def test_nothing_is_lost_and_replicas_are_the_same_bits(case, plans):
    configuration = configure(case)
    outcomes = train(configuration, plans=plans)
    first, *others = outcomes
    for other in others:
        for mine, theirs in zip(first[1], other[1]):
            assert mine.keys() == theirs.keys()
            assert all(worlds.same_bits(mine[key], theirs[key]) for key in mine)
    for balance in lost(outcomes).values():
        if configuration.selector.changes_values:
            assert np.abs(balance).max() < 1e-3
        else:
            assert not balance.any()
    assert any(value.any() for value in first[1][0].values()), "nothing was applied at all"


@pytest.mark.parametrize("case", MERGED, ids=str)
def test_a_group_of_one_tensor_gives_the_bits_of_selection_by_tensor(case):
    alone = configure(case, groups=50)
    by_tensor = configure(case, groups=50, select_over="tensor")
    assert bits(train(alone, draw=worlds.normals)) == bits(train(by_tensor, draw=worlds.normals))


@pytest.mark.parametrize(
    "case", [case for case in MERGED if not SELECTORS.get(case.id).needs_rng], ids=str
)
def test_the_first_selection_is_the_selectors_own_from_the_joined_vector(case):
    configuration = configure(case)
    given, applied, *_ = train(configuration, ranks=1, steps=1)[0]
    joined = np.concatenate([given[0][key].reshape(-1) for key in KEYS])
    chosen = configuration.selector.select(joined)
    expected = np.zeros_like(joined)
    expected[chosen.indices] = chosen.values
    assert worlds.same_bits(np.concatenate([applied[0][key].reshape(-1) for key in KEYS]), expected)


@pytest.mark.parametrize(
    "memory", [case for case in cases.MEMORIES if not case.create(MEMORIES).counts_votes], ids=str
)
def test_at_density_one_it_makes_no_difference_to_any_memory(memory):
    made = memory.create(MEMORIES)
    if memory.options.get("weight_decay"):
        made = replace(made, weight_decay=0.0)  # sessions have no parameters
    options = {"density": 1.0, "memory": made}
    merged, by_tensor = (configure(**options, select_over=over) for over in ("group", "tensor"))
    assert bits(train(merged, draw=worlds.normals)) == bits(train(by_tensor, draw=worlds.normals))


@pytest.mark.parametrize("rollback", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("codec", cases.CODECS, ids=str)
def test_every_codec_carries_a_tensors_share_and_the_memory_keeps_its_rounding(codec, rollback):
    outcomes = train(configure(codec=codec.create(CODECS), rollback=rollback), draw=worlds.normals)
    for balance in lost(outcomes).values():
        assert np.abs(balance).max() < 1e-3
    assert any(value.any() for value in outcomes[0][1][0].values())


def test_a_schedule_gives_the_groups_density_at_the_step_of_its_furthest_tensor():
    schedule = {"id": "piecewise", "boundaries": (2,), "densities": (0.5, 0.01)}
    late = {0: ("t0", "t3"), 1: ("t0", "t4")}
    outcomes = train(
        configure(schedule=schedule), ranks=1, steps=3, absent=late, draw=worlds.normals
    )
    for step, density in zip(outcomes[0][1], (0.5, 0.5, 0.01)):
        numel = sum(value.size for value in step.values())
        sent = sum(np.count_nonzero(value) for value in step.values())
        assert sent == count_from_density(numel, density)


def test_a_tensor_whose_step_runs_dense_is_not_in_the_vector():
    options = {"density": 0.2, "max_gathered_bytes": 1000, "allow_dense": True}
    outcomes = train(configure(**options), ranks=1, steps=2, absent={}, draw=worlds.normals)
    report = outcomes[0][3]
    assert report["tensors"]["t2"]["dense_steps"] == 2
    assert report["entries_total"] == 2 * (NUMEL - 600)
    assert report["entries_sent"] == 2 * count_from_density(NUMEL - 600, 0.2)


def test_a_share_is_bounded_and_the_rest_stays():
    outcomes = train(configure(density=0.3, max_gathered_bytes=3 * 300))
    most = max(int(np.count_nonzero(step[key])) for step in outcomes[0][1] for key in step)
    assert 0 < most <= 3 * 300 // 8
    assert not any(balance.any() for balance in lost(outcomes).values())


@pytest.fixture
def searched(monkeypatch):
    """The searches of top-k so far: entries, whether it started warm, and knew the moments."""
    found, find = [], TopK.find

    def noted(selector, accumulated, context):
        is_known = context.moments == context.kernels.moments(accumulated)
        found.append((accumulated.size, context.warm is not None, is_known))
        return find(selector, accumulated, context)

    monkeypatch.setattr(TopK, "find", noted)
    return found


@pytest.mark.parametrize("rollback", [True, False])
def test_a_steady_group_is_chosen_from_what_the_passes_took_along(rollback, searched):
    steady = {"steps": 20, "absent": {}, "draw": worlds.normals, "ranks": 1}
    aimed = bits(train(configure(rollback=rollback), **steady))
    assert 1 <= len(searched) <= 6 if rollback else len(searched) == 20
    assert aimed[0] == bits(train(configure(rollback=False), **steady))[0]
    assert {size for size, *_ in searched} == {NUMEL}


def test_a_search_starts_warm_where_just_its_tensors_ended(searched, monkeypatch):
    monkeypatch.setattr(TopK, "aim", lambda *_: None)
    groups, cold, warm = [["t0", "t3"], ["t1", "t2", "t4"]], False, True
    plans = [1, 1, groups, 1, 1, 1, 1]
    train(configure(), ranks=1, plans=plans, steps=len(plans), absent={5: ("t1",)})
    pair, others = SPECS[0].numel + SPECS[3].numel, NUMEL - SPECS[1].numel
    expected = [(NUMEL, cold), (NUMEL, warm), (pair, cold), (NUMEL - pair, cold), (NUMEL, cold)]
    expected += [(NUMEL, warm), (others, cold), (NUMEL, cold)]
    assert searched == [(*each, True) for each in expected]  # moments of whole numbers are exact


@dataclass(frozen=True)
class Fragile(TopK):
    id: ClassVar[str] = "fragile"

    def find(self, accumulated, context):
        if float(accumulated[0]) == 77.0:
            raise ArithmeticError("no threshold to be found")
        return super().find(accumulated, context)

    def cut(self, taken, aim, context):
        if taken.count and taken.indices[0] == 0 and float(taken.values[0]) == 77.0:
            raise ArithmeticError("no threshold to be found")
        return super().cut(taken, aim, context)


@pytest.mark.parametrize("rollback", [True, False])
def test_a_selection_that_fails_on_one_rank_fails_on_all_and_leaves_no_trace(rollback):
    """The carriers are gone by then, so that the words travel in the message."""
    groups = [["t0", "t3"], ["t1", "t2"]]
    configuration = replace(configure(rollback=rollback, groups=groups), selector=Fragile(0.05))

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        session.reduce(worlds.integers(SPECS, collective.rank, 0))
        before = worlds.snapshot(session)
        broken = worlds.integers(SPECS, collective.rank, 1)
        if collective.rank == 1:
            broken["t1"].reshape(-1)[0] = 77.0 - worlds.residuals(session)["t1"][0]
        with pytest.raises(PeerFailure) as caught:
            session.reduce(broken)
        said = str(caught.value)
        assert "rank 1: selecting from 't1', 't2' as one: ArithmeticError: no threshold" in said
        assert worlds.snapshot(session) == before or not rollback
        whole = session.reduce(worlds.integers(SPECS, collective.rank, 2))
        assert all(np.isfinite(value).all() for value in whole.values())

    worlds.run(3, script)


@pytest.mark.parametrize("case", cases.EXCHANGES, ids=str)
def test_exchanges_that_choose_tensor_by_tensor_are_refused(case):
    exchange = case.create(EXCHANGES)
    if exchange.settles_later or exchange.sums_first:
        with pytest.raises(InvalidOption, match=f"'group', and exchange {case.id} .*'allgather'"):
            configure(exchange=exchange)
    else:
        outcomes = train(configure(exchange=exchange))
        assert not any(balance.any() for balance in lost(outcomes).values())


@pytest.mark.parametrize("case", [case for case in cases.SELECTORS if case not in MERGED], ids=str)
def test_selectors_that_compare_a_tensors_gradient_with_its_residual_are_refused(case):
    words = f"select_over is 'group', and selector {case.id} compares .* use another selector"
    with pytest.raises(InvalidOption, match=words):
        configure(case)


DOUBLE = [*SPECS[:2], TensorSpec("d", (30, 4), "float64"), *SPECS[2:]]


def test_small_neighbours_of_other_precision_are_not_grouped_with_each_other():
    assert grouped(DOUBLE, configure(groups=None)) == [(3, 4, 5), (2,), (0, 1)]
    assert grouped(DOUBLE, configure(groups=None, select_over="tensor")) == [(0, 1, 2, 3, 4, 5)]
    outcomes = train(configure(groups=None), ranks=2, specs=DOUBLE)
    assert not any(balance.any() for balance in lost(outcomes).values())


def test_groups_that_were_asked_for_and_cannot_be_one_vector_are_refused_by_name():
    words = (
        "tensors 't0' and 'd' of one group are accumulated in float32 and float64.*"
        "give groups that separate these tensors, or use select_over='tensor'"
    )

    def script(collective):
        for groups in ([["t0", "d"]], 1):
            with pytest.raises(InvalidOption, match=words):
                Session(configure(groups=groups), DOUBLE, collective)
        session = Session(configure(groups=50), DOUBLE, collective)
        with pytest.raises(InvalidOption, match=words):
            session.step.regroup([(0, 1, 2, 3, 4, 5)])

    worlds.run(1, script)


def test_groups_of_more_entries_than_indices_can_number_are_refused():
    specs = worlds.tensors((2**16, 2**15), (2**16, 2**15))

    def script(collective):
        with pytest.raises(InvalidOption, match=r"2 .* from 't0' to 't1' have 4294967296 entries"):
            Session(configure(), specs, collective)

    worlds.run(1, script)
    assert grouped(specs, configure(density=1e-9, groups=None)) == [(1,), (0,)]


TENSORS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8), (9, 9))
SHAPES = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), max_size=12)


def buckets(groups):
    return grouped(TENSORS, worlds.configure(groups=groups))


def trained(plans, **options):
    """All bits that are applied and kept, by the plans in turn."""
    configuration = worlds.configure(density=0.05, groups=plans[0], **options)
    absent = {3: ("t1", "t4")}
    options = {"steps": 6, "absent": absent, "draw": worlds.normals, "specs": TENSORS}
    return bits(train(configuration, plans=plans, **options))


def test_a_number_of_groups_is_that_many_of_neighbours_or_one_a_tensor_and_takes_no_memory():
    for number in (1, 2, 3, 10**7, 10**400):
        tracemalloc.start()
        plan = buckets(number)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(plan) == min(number, len(TENSORS)) and most < 100_000
        assert [position for bucket in reversed(plan) for position in bucket] == list(range(6))


def test_names_are_taken_as_they_are_and_the_others_travel_alone_or_are_refused():
    assert buckets([["t5", "t0"], ["t3", "t2"]]) == [(0, 5), (2, 3), (4,), (1,)]
    with pytest.raises(InvalidOption, match="'t9', but no tensor has this name; there are: t0"):
        buckets([["t0", "t9"]])


@pytest.mark.parametrize("exchange", ["allgather", "gtopk", "oktopk"])
def test_groups_make_no_difference_to_any_bit_and_may_change_at_any_step(exchange):
    alone = trained([50], exchange=exchange)
    for plans in ([None], [1], [2, 50, [["t0", "t5"], ["t1", "t4"]]]):
        assert trained(plans, exchange=exchange) == alone


def test_groups_do_not_change_in_the_middle_of_a_step():
    def script(collective):
        session = Session(worlds.configure(), TENSORS, collective, average=False)
        wire, ticket = session.driver.compress(0, np.ones(TENSORS[0].numel, np.float32))
        with pytest.raises(InvalidOption, match="'t0' has no result yet: change groups between"):
            session.step.regroup(buckets(1))
        reduced = collective.allreduce(wire, "t0").wait(None)
        session.driver.decompress(reduced, ticket)
        session.step.regroup(buckets(1))

    worlds.run(2, script)


@example(shapes=[(4, 5), (20,), (19, 1)], min_numel=20, compress_1d=False, bucket_bytes=1)
@example(shapes=[(), (0, 5), (1, 1)], min_numel=0, compress_1d=True, bucket_bytes=1)
@given(
    shapes=SHAPES,
    min_numel=st.integers(0, 100),
    compress_1d=st.booleans(),
    bucket_bytes=st.integers(1, 4_000),
)
def test_every_compressed_tensor_is_in_one_bucket(shapes, min_numel, compress_1d, bucket_bytes):
    specs = worlds.tensors(*shapes)
    configuration = worlds.configure(min_numel=min_numel, compress_1d=compress_1d)
    wanted = [
        i
        for i, shape in enumerate(shapes)
        if 0 < math.prod(shape) >= min_numel and (compress_1d or len(shape) > 1)
    ]
    assert one_per_tensor(specs, configuration) == [(i,) for i in wanted]
    with mock.patch("hvd_sparse.step.buckets.BUCKET_BYTES", bucket_bytes):
        plan = merge_small(specs, configuration)
    assert [i for bucket in reversed(plan) for i in bucket] == wanted


@given(shapes=SHAPES, bucket_bytes=st.integers(1, 2_000))
def test_a_bucket_is_closed_by_the_tensor_that_fills_it(shapes, bucket_bytes):
    """Expected bytes: 8 an entry, a quarter of the entries, at least one of each tensor."""
    with mock.patch("hvd_sparse.step.buckets.BUCKET_BYTES", bucket_bytes):
        plan = merge_small(worlds.tensors(*shapes), worlds.configure(density=0.25))
    cost = {i: 8 * max(1, math.prod(shape) // 4) for i, shape in enumerate(shapes)}
    for number, bucket in enumerate(plan):
        filled = sum(cost[i] for i in bucket)
        assert filled >= bucket_bytes or number == len(plan) - 1
        assert filled - cost[min(bucket)] < bucket_bytes
