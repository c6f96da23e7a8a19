"""The planner against brute force, other strategies, a step worked out by hand, and the published
loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import every_end_s, greedy_by_arrays, our_instance, published_instance

from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.autotune.costmodel.exact import exact
from hvd_sparse.autotune.costmodel.instance import Instance
from hvd_sparse.autotune.costmodel.planner import STRATEGIES, best, compare
from hvd_sparse.autotune.costmodel.strategies import (
    as_ready,
    buckets,
    greedy,
    greedy_fixed,
    merge_all,
    no_merge,
)
from hvd_sparse.autotune.costmodel.timeline import Span, end_s, evaluate, simplified
from hvd_sparse.errors import InvalidOption

MODES = [(per_tensor, is_late) for per_tensor in (False, True) for is_late in (False, True)]
SEEDS = st.integers(0, 2**32 - 1)


def test_the_plan_is_that_of_brute_force_with_the_authors_constants():
    rng = np.random.default_rng(8)
    for _ in range(1000):
        instance = published_instance(rng, int(rng.integers(1, 13)))
        found = exact(instance)
        assert found.is_exact
        assert end_s(instance, found.plan) == pytest.approx(every_end_s(instance).min(), rel=1e-9)


@pytest.mark.parametrize(("per_tensor", "is_late"), MODES)
def test_the_plan_is_that_of_brute_force_with_any_costs(per_tensor, is_late):
    rng = np.random.default_rng(9)
    for _ in range(100):
        instance = our_instance(
            rng, int(rng.integers(1, 11)), per_tensor=per_tensor, is_late=is_late
        )
        assert end_s(instance, best(instance)) == pytest.approx(
            every_end_s(instance).min(), rel=1e-9
        )


@given(SEEDS, st.integers(1, 60), st.sampled_from(MODES), st.sampled_from([None, 1, 3]))
def test_no_strategy_is_quicker_than_the_planner_however_short_its_fronts(
    seed, layers, mode, front_limit
):
    rng = np.random.default_rng(seed)
    instance = our_instance(rng, layers, per_tensor=mode[0], is_late=mode[1])
    found = exact(instance, front_limit=front_limit)
    rules = {
        name: end_s(instance, strategy(instance))
        for name, strategy in STRATEGIES.items()
        if name != "exact"
    }
    assert end_s(instance, found.plan) <= min(rules.values()) * (1 + 1e-9)
    assert set(compare(instance)) == set(STRATEGIES)


@pytest.mark.parametrize(
    "make", [published_instance, lambda *a: our_instance(*a, per_tensor=False, is_late=True)]
)
def test_fronts_are_bounded_for_a_thousand_layers(make):
    instance = make(np.random.default_rng(1), 1000)
    found = exact(instance)
    assert found.largest_front * instance.size**2 <= 10_000_000
    assert found.plan[-1] == 1000


def test_a_front_that_was_thinned_out_says_so():
    rng = np.random.default_rng(2)
    instance = our_instance(rng, 40, per_tensor=False, is_late=False)
    whole, thinned = exact(instance, front_limit=10_000), exact(instance, front_limit=1)
    assert whole.is_exact and whole.largest_front > 1
    assert not thinned.is_exact and thinned.largest_front == 1
    assert end_s(instance, thinned.plan) >= end_s(instance, whole.plan)


HAND = Instance(
    backward_s=[2.0, 1.0, 3.0],
    numel=[10, 20, 30],
    sent=[1, 2, 3],
    nbytes=[4, 2, 6],
    wire=Line(1.0, 0.5),
    work=Work(call_s=0.5, entry_s=0.1, sent_s=1.0),
    per_tensor=False,
)
"""Computing, selected one by one: 2 + 0.5 + 1 + 1 = 4.5, 1 + 0.5 + 2 + 2 = 5.5, 3 + 0.5 + 3 + 3 =
9.5; wire 3, 2, 4."""


def test_a_step_is_as_worked_out_by_hand():
    alone = evaluate(HAND, (1, 2, 3))
    assert alone.spans == (
        Span(0, 1, 4.5, 4.5, 7.5),
        Span(1, 2, 10.0, 10.0, 12.0),
        Span(2, 3, 19.5, 19.5, 23.5),
    )
    assert (alone.compute_s, alone.wire_s, alone.end_s, alone.waiting_s) == (19.5, 23.5, 23.5, 4.0)
    pair = evaluate(
        HAND, (2, 3)
    )  # 3 of backward, 0.5 + 3 + 3 of selecting 30 entries; 1 + 3 on the wire
    assert pair.spans == (Span(0, 2, 9.5, 9.5, 13.5), Span(2, 3, 19.0, 19.0, 23.0))
    assert evaluate(HAND, (3,)).spans == (Span(0, 3, 18.5, 18.5, 25.5),)


def test_a_wire_that_is_busy_keeps_a_group_waiting_and_late_collectives_come_last():
    slow = Instance(
        [1.0, 1.0], [1, 1], [0, 0], [1, 1], Line(5.0, 0.0), late=Line(2.0, 1.0), late_nbytes=[3, 4]
    )
    alone = evaluate(slow, (1, 2))
    assert [(span.ready_s, span.sends_s, span.sent_s) for span in alone.spans] == [
        (1.0, 1.0, 6.0),
        (2.0, 6.0, 11.0),
    ]
    assert (alone.wire_s, alone.end_s) == (11.0, 11.0 + 2 * 2.0 + 7.0)
    assert evaluate(slow, (2,)).end_s == 2.0 + 5.0 + 2.0 + 7.0


def test_tensors_selected_from_one_by_one_are_ready_no_earlier_for_being_merged():
    rng = np.random.default_rng(3)
    instance = our_instance(rng, 8, per_tensor=True, is_late=False)
    for plan in ((8,), (3, 8), tuple(range(1, 9))):
        assert evaluate(instance, plan).compute_s == pytest.approx(
            evaluate(instance, (8,)).compute_s
        )


@pytest.mark.parametrize("plan", [(), (1, 2), (2, 2, 3), (0, 3), (3, 2), (4,)])
def test_a_plan_that_does_not_hold_every_layer_once_is_refused(plan):
    with pytest.raises(InvalidOption, match=r"plan .* for 3 layers"):
        evaluate(HAND, plan)


def test_greedy_decides_as_the_published_loop_slip_included():
    rng = np.random.default_rng(4)
    differ = 0
    for _ in range(300):
        instance = published_instance(rng, int(rng.integers(1, 13)))
        assert greedy(instance) == greedy_by_arrays(instance)
        differ += greedy(instance) != greedy_fixed(instance)
    assert differ > 0


def test_the_published_loop_always_groups_the_first_two_and_fails_where_it_should_not():
    """Long backward times and a quick wire: nothing is worth waiting for."""
    instance = Instance([1.0] * 3, [1] * 3, [0] * 3, [1] * 3, Line(0.01, 0.01))
    assert greedy(instance) == (2, 3)
    assert greedy_fixed(instance) == no_merge(instance) == (1, 2, 3)


def test_greedy_is_worse_than_not_merging_at_times_and_the_planner_never():
    rng = np.random.default_rng(5)
    worse = equal = 0
    for _ in range(300):
        instance = published_instance(rng, int(rng.integers(3, 11)))
        by_greedy, apart = end_s(instance, greedy(instance)), end_s(instance, no_merge(instance))
        least = end_s(instance, best(instance))
        worse += by_greedy > apart * (1 + 1e-9)
        equal += by_greedy <= least * (1 + 1e-9)
    assert worse > 30 and equal < 100


def test_buckets_close_at_their_size():
    assert buckets(HAND, 5) == (2, 3)
    assert buckets(HAND, 1e9) == merge_all(HAND) == (3,)
    assert buckets(HAND, 0) == no_merge(HAND) == (1, 2, 3)


def test_as_ready_sends_what_is_there_when_the_wire_is_free_up_to_a_full_buffer():
    instance = Instance([1.0] * 6, [1] * 6, [0] * 6, [10] * 6, Line(2.5, 0.0))
    assert as_ready(instance) == (
        1,
        3,
        6,
    )  # at 1, at 3.5 when two more are there, at 6 when all are
    assert as_ready(instance, fusion_bytes=20) == (1, 3, 5, 6)


def test_groups_that_need_not_be_apart_are_joined():
    instance = Instance([1.0, 1.0, 10.0], [1] * 3, [0] * 3, [1] * 3, Line(0.1, 1.0))
    assert simplified(instance, (1, 2, 3)) == best(instance) == (2, 3)


@pytest.mark.parametrize(
    "change", [{"numel": [1, 2]}, {"nbytes": []}, {"late_nbytes": [1.0]}, {"backward_s": []}]
)
def test_an_instance_of_lists_that_do_not_fit_is_refused(change):
    lists = {"backward_s": [1.0] * 3, "numel": [1] * 3, "sent": [1] * 3, "nbytes": [1] * 3}
    with pytest.raises(InvalidOption, match="one number for each of"):
        Instance(**{**lists, **change}, wire=Line(1.0, 1.0))
