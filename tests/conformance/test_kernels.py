"""Every engine keeps the contracts of ``kernels.contract``."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from conformance import hostile, kernel_checks
from conformance.directed_checks import check_large_directions, check_take_by_adam
from conformance.fused_checks import DRAWS, FUSED, check_large
from conformance.kernel_checks import PER_VECTOR, has_statistics, put, vectors
from conformance.packing_checks import PACKING
from conformance.statistics_checks import ON_FINITE_DATA, check_orthogonalized
from distributions import draw

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import ENGINES
from hvd_sparse.types import Selection


@pytest.fixture(params=cases.ENGINES, ids=str)
def kernels(request):
    return request.param.create(ENGINES).kernels


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "check", PER_VECTOR + FUSED, ids=lambda check: check.__name__.removeprefix("check_")
)
def test_a_kernel_does_what_its_contract_says(kernels, check, dtype):
    for x in vectors(dtype):
        put(check, kernels, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "check",
    [*ON_FINITE_DATA, check_take_by_adam],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_a_kernel_of_single_selectors_does_what_its_contract_says(kernels, check, dtype):
    for x in vectors(dtype):
        if has_statistics(x):
            put(check, kernels, x)


def test_an_engine_gives_the_references_bits_on_whatever_callers_give(kernels):
    for seed in range(DRAWS):
        hostile.check_beside_the_reference(kernels, seed)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_singular_values_go_through_newton_and_schulzs_polynomial(kernels, dtype):
    check_orthogonalized(kernels, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_fused_pass_over_a_large_vector_is_the_same(kernels, dtype):
    check_large(kernels, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pass_that_pushes_a_large_memory_is_the_same(kernels, dtype):
    check_large_directions(kernels, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_of_many_are_the_references(kernels, dtype):
    kernel_checks.check_largest_of_many(kernels, dtype)


@pytest.mark.parametrize("check", PACKING, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_kernel_of_codecs_does_what_its_contract_says(kernels, check):
    check(kernels)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_accept_read_only_vectors(kernels, dtype):
    x = draw("normal", 100, dtype)
    x.flags.writeable = False
    indices = np.arange(5, dtype=np.uint32)
    indices.flags.writeable = False
    kernels.moments(x)
    kernels.count_at_least(x, 0.5)
    kernels.take_at_least(x, 0.5)
    kernels.count_and_take(x, 0.5, 100)
    kernels.take_largest(x, 7)
    kernels.accumulate(x, x, np.empty_like(x))
    kernels.accumulate_and_take(x, x, np.empty_like(x), Aim(0.5, 100))
    kernels.trim(Selection(indices, x[:5], 100), 3, np.empty_like(x))
    kernels.restore(np.empty_like(x), Selection(indices, x[:5], 100))
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("numel", [15, 16, 17, 4_095, 4_097, 12_345, 300_001])
def test_long_vectors_give_the_references_bits(kernels, numel, dtype):
    """Beyond the contract's small vectors: segments, remainders and threads."""
    x, gradient = draw("normal", numel, dtype), draw("laplace", numel, dtype)
    indices = np.arange(1, 3 * numel, 3, dtype=np.uint32)
    asked = ((3.0, numel), (3.0, max(1, numel // 50)), (9.0, numel // 2), (0.0, numel), (1.0, 1))
    for threshold, count in asked:
        hostile.ask_both(kernels, x, gradient, threshold, count, indices)
