"""Every engine keeps the contracts of ``core.kernels``."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from conformance import kernel_checks
from conformance.kernel_checks import PER_VECTOR, vectors
from conformance.statistics_checks import ON_FINITE_DATA
from distributions import draw

from hvd_sparse.registry import ENGINES


@pytest.fixture(params=cases.ENGINES, ids=str)
def kernels(request):
    return request.param.create(ENGINES).kernels


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("check", PER_VECTOR, ids=lambda check: check.__name__.removeprefix("check_"))
def test_36_a_kernel_does_what_its_contract_says(kernels, check, dtype):
    for x in vectors(dtype):
        check(kernels, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("check", ON_FINITE_DATA, ids=lambda check: check.__name__.removeprefix("check_"))
def test_36_a_kernel_of_single_selectors_does_what_its_contract_says(kernels, check, dtype):
    for x in vectors(dtype):
        if np.isfinite(x).all():
            check(kernels, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_accept_read_only_vectors(kernels, dtype):
    x = draw("normal", 100, dtype)
    x.flags.writeable = False
    indices = np.arange(5, dtype=np.uint32)
    indices.flags.writeable = False
    kernels.moments(x)
    kernels.count_at_least(x, 0.5)
    kernels.take_at_least(x, 0.5)
    kernels.take_largest(x, 7)
    kernels.compensate(x, x, np.empty_like(x))
    kernels.clear(x.copy(), indices)
    kernels.scatter_add(x.copy(), indices, x[:5])
    for check in ON_FINITE_DATA:
        check(kernels, x)


def test_thresholds_are_rounded_to_float32_before_they_are_compared(kernels):
    kernel_checks.check_threshold_is_rounded(kernels)


def test_magnitudes_are_summed_in_float64(kernels):
    kernel_checks.check_sum_is_wide(kernels)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_report_what_is_not_finite(kernels, dtype):
    kernel_checks.check_infinity_is_reported(kernels, dtype)


def test_an_infinite_entry_is_the_largest(kernels):
    x = np.array([1, -np.inf, 2, np.nan], np.float32)
    assert kernels.take_largest(x, 2).indices.tolist() == [1, 2]
    assert kernels.take_at_least(x, 2.0).indices.tolist() == [1, 2]
