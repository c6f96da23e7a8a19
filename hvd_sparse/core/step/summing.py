"""The sum of what all ranks sent of a tensor, and whether floats can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from hvd_sparse.core.kernels.aligned import aligned_empty
from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.core.step.loss_scale import is_finite
from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.types import Selection, TensorSpec

MOST_FACTOR = 1e6
"""Horovod multiplies sums by 1 or less, unless it is told otherwise."""


def add_up(
    parts: Sequence[Selection],
    factor: float,
    out: np.ndarray,
    spec: TensorSpec,
    kernels: Kernels | ModuleType,
) -> None:
    """Write factor * (sum of the parts, in their order) to ``out``.

    NonFiniteGradient, and nothing is written, where the sum, as it is or times the factor, leaves
    the range of floats.
    """
    if not all(is_small(part.values) for part in parts) or abs(factor) > MOST_FACTOR:
        _check_range(parts, factor, spec, kernels)
    kernels.assemble(out, parts if factor == 1.0 else [_times(part, factor) for part in parts])


def is_small(values: np.ndarray) -> bool:
    """Tell whether the sum of the squares stays in range: then a sum of such lists does by far."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(values, values)))


def _check_range(
    parts: Sequence[Selection], factor: float, spec: TensorSpec, kernels: Kernels | ModuleType
) -> None:
    out = aligned_empty(spec.numel, spec.accumulator)
    with np.errstate(over="ignore", invalid="ignore"):
        for each in (1.0, factor):
            kernels.assemble(out, [_times(part, each) for part in parts])
            if not is_finite(out):
                raise NonFiniteGradient(
                    f"tensor {spec.key!r}: the sum of the ranks' entries leaves the range of {spec.accumulator}"
                )


def _times(part: Selection, factor: float) -> Selection:
    return Selection(part.indices, part.values * part.values.dtype.type(factor), part.numel)
