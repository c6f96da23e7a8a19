"""The planner against brute force, a step worked out by hand, and lines fitted to messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.plan.costs import Line, fit_line
from hvd_sparse.plan.decisions import Instance, best_plan

DENSITY = 0.001


def instance_of(rng, layers, *, has_calls):
    numel = np.exp(rng.uniform(np.log(1e3), np.log(1e7), layers)).astype(np.int64)
    nbytes = 8 * DENSITY * numel * rng.uniform(0.5, 2, layers)
    wire = Line(*rng.uniform(0, [3e-3, 1e-7]))
    call_s, entry_s = rng.uniform(0, [1.4e-4, 2e-9])
    backward_s = rng.uniform(0, 4e-3, layers) * rng.choice([0.01, 1.0])
    return Instance(backward_s + entry_s * numel, nbytes, wire, call_s * has_calls)


def end_s(instance, plan):
    compute_s = wire_s = 0.0
    for start, stop in zip((0, *plan), plan):
        compute_s += instance.compute_s(start, stop)
        wire_s = max(wire_s, compute_s) + instance.wire_s(start, stop)
    return wire_s


def every_end_s(instance):
    size = instance.size
    plans = np.arange(2 ** (size - 1))
    compute_s, wire_s = np.zeros((2, plans.size))
    start = np.zeros(plans.size, np.int64)
    for stop in range(1, size + 1):
        ends = (plans >> (stop - 1)) & 1 == 1 if stop < size else np.ones(plans.size, bool)
        first = start[ends]
        compute_s[ends] += instance.compute_s(first, stop)
        wire_s[ends] = np.maximum(wire_s[ends], compute_s[ends]) + instance.wire_s(first, stop)
        start[ends] = stop
    return wire_s


@pytest.mark.parametrize("has_calls", [False, True])
def test_the_plan_is_that_of_brute_force(has_calls):
    rng = np.random.default_rng(9)
    for _ in range(200):
        instance = instance_of(rng, int(rng.integers(1, 12)), has_calls=has_calls)
        ends_s, plan = every_end_s(instance), best_plan(instance)
        assert end_s(instance, plan) == pytest.approx(ends_s.min(), rel=1e-8)
        groups = [1 + bin(each).count("1") for each in np.flatnonzero(ends_s <= ends_s.min())]
        assert len(plan) <= min(groups)


def test_a_thousand_layers_are_planned():
    instance = instance_of(np.random.default_rng(1), 1000, has_calls=True)
    assert best_plan(instance)[-1] == 1000


HAND = Instance(
    layer_s=[2.0 + 1.0, 1.0 + 2.0, 3.0 + 3.0], nbytes=[4, 2, 6], wire=Line(1.0, 0.5), group_s=0.5
)
"""Computing, selected one by one: 2 + 0.5 + 1 = 3.5, 1 + 0.5 + 2 = 3.5, 3 + 0.5 + 3 = 6.5; wire 3,
2, 4."""


def test_a_step_is_as_worked_out_by_hand():
    assert end_s(HAND, (1, 2, 3)) == 3.5 + 3.5 + 6.5 + 4
    assert end_s(HAND, (2, 3)) == 3 + 0.5 + 3 + 6.5 + 4  # one selection from 30 entries
    assert end_s(HAND, (3,)) == 6 + 0.5 + 6 + 7


def test_of_equally_fast_plans_the_one_with_fewest_groups_is_found():
    instance = Instance([1.0, 1.0, 10.0], [1] * 3, Line(0.1, 1.0))
    assert end_s(instance, (1, 2, 3)) == end_s(instance, (2, 3))
    assert best_plan(instance) == (2, 3)


SIZES = tuple(float(2**power) for power in range(8, 27, 2))


def messages(line, rng):
    found = []
    for size in SIZES:
        times = line(size) * (1 + 0.03 * rng.standard_normal(9))
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
