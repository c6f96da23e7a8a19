"""Lines fitted to noisy messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.plan.costs import Line, fit_line

SIZES = tuple(float(2**power) for power in range(8, 27, 2))


def messages(line, rng, repeats=9):
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
