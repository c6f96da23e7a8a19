"""Every engine keeps the contracts of ``kernels.contract``."""

import cases
import numpy as np
import pytest
from conformance import hostile
from conformance.directed_checks import check_take_by_adam
from conformance.fused_checks import ALONE, DRAWS, FUSED, OF_A_DTYPE
from conformance.kernel_checks import PER_VECTOR, has_statistics, put, vectors
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
@pytest.mark.parametrize(
    "check", [*OF_A_DTYPE, check_orthogonalized], ids=lambda check: check.__name__
)
def test_vectors_that_are_large_or_odd_do_as_the_reference_or_their_definition(
    kernels, check, dtype
):
    check(kernels, dtype)


@pytest.mark.parametrize("check", ALONE, ids=lambda check: check.__name__.removeprefix("check_"))
def test_a_kernel_of_codecs_or_thresholds_does_what_its_contract_says(kernels, check):
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("numel", [15, 16, 17, 4_095, 4_097, 12_345, 300_001])
def test_long_vectors_give_the_references_bits(kernels, numel, dtype):
    x, gradient = draw("normal", numel, dtype), draw("laplace", numel, dtype)
    indices = np.arange(1, 3 * numel, 3, dtype=np.uint32)
    asked = ((3.0, numel), (3.0, max(1, numel // 50)), (9.0, numel // 2), (0.0, numel), (1.0, 1))
    for threshold, count in asked:
        hostile.ask_both(kernels, x, gradient, threshold, count, indices)
