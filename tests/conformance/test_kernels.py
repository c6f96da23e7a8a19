"""Every engine keeps the contracts of ``kernels.contract``."""

import cases
import pytest
from conformance.fused_checks import ALONE, OF_A_DTYPE, OF_A_VECTOR, put
from conformance.kernel_checks import vectors

from hvd_sparse.registry import ENGINES


@pytest.fixture(params=cases.ENGINES, ids=str)
def kernels(request):
    return request.param.create(ENGINES).kernels


def named(checks):
    return pytest.mark.parametrize(
        "check", checks, ids=lambda check: check.__name__.removeprefix("check_")
    )


dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


@dtypes
@named(OF_A_VECTOR)
def test_a_kernel_does_what_its_contract_says(kernels, check, dtype):
    for x in vectors(dtype):
        put(check, kernels, x)


@dtypes
@named(OF_A_DTYPE)
def test_vectors_that_are_large_or_odd_do_as_the_reference_or_their_definition(
    kernels, check, dtype
):
    check(kernels, dtype)


@named(ALONE)
def test_a_kernel_of_codecs_or_thresholds_does_what_its_contract_says(kernels, check):
    check(kernels)
