"""The conformance suite in one process, for kernels whose vectors are carried to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from conformance import fused_checks, hostile, kernel_checks
from conformance.statistics_checks import ON_FINITE_DATA

CHECKS = kernel_checks.PER_VECTOR + fused_checks.FUSED


def check_all(kernels: Any) -> None:
    """The conformance suite on all vectors; doubles, which no other code is run for, on a third of
    them."""
    for dtype, every in (("float32", 1), ("float64", 3)):
        kernel_checks.check_infinity_is_reported(kernels, dtype)
        kernel_checks.check_largest_of_many(kernels, dtype)
        fused_checks.check_large(kernels, dtype)
        check_vectors(kernels, kernel_checks.vectors(dtype)[::every])
    kernel_checks.check_threshold_is_rounded(kernels)
    kernel_checks.check_sum_is_wide(kernels)
    for seed in range(fused_checks.DRAWS):
        hostile.check_beside_the_reference(kernels, seed)


def check_vectors(kernels: Any, vectors: list[np.ndarray]) -> None:
    for x in vectors:
        for check in CHECKS:
            kernel_checks.put(check, kernels, x)
        for check in ON_FINITE_DATA if kernel_checks.has_statistics(x) else ():
            kernel_checks.put(check, kernels, x)
