"""Gradients that arrive multiplied by a loss scale, and what 16 bits can hold.

Residuals are kept in unscaled units, so that a step of another scale adds to them what it should.
Scales that are powers of two, as loss scalers have them, change no bit of a float32 that neither
over- nor underflows.
"""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.arrays import is_finite
from hvd_sparse.kernels.contract import Kernels, Moments

HALF_LIMIT = 65520.0
"""The smallest magnitude that becomes Inf as float16."""


def check_scale(scale: float) -> None:
    """InvalidOption for what is no scale."""
    if not math.isfinite(scale) or scale <= 0:
        raise InvalidOption(
            f"the loss scale is {scale!r}: a number above 0; grad_scaler= must be the scaler in use"
        )


def unscaled(gradient: np.ndarray, scale: float) -> np.ndarray:
    """The gradient of the unscaled loss; itself where the scale is 1.  An array of its own
    otherwise."""
    if scale == 1.0:
        return gradient
    with np.errstate(over="ignore"):  # looked at when it is accumulated
        plain: np.ndarray = gradient / gradient.dtype.type(scale)
    return plain


def rescaled(gradient: np.ndarray, scale: float) -> np.ndarray:
    """Return the gradient times the scale, which the scaler divides by; itself where that is 1."""
    if scale == 1.0:
        return gradient
    with np.errstate(over="ignore"):
        scaled: np.ndarray = gradient * gradient.dtype.type(scale)
    return scaled


def stays_finite(gradient: np.ndarray, dtype: str, kernels: Kernels | ModuleType) -> bool:
    """Tell whether a reduced gradient can be cast to a dtype, by a pass over it.

    gradient : on a device it is looked at there, which is waited for
    dtype : of the parameter
    """
    if not isinstance(gradient, np.ndarray):
        moments: Moments = kernels.moments(gradient)
        return moments.is_finite and (dtype != "float16" or moments.abs_max < HALF_LIMIT)
    if dtype == "float16":
        return not gradient.size or float(np.abs(gradient).max()) < HALF_LIMIT
    return is_finite(gradient)
