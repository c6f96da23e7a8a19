"""Loss scales: gradients that arrive multiplied by a scale, and the range of 16-bit dtypes.

Residuals are kept unscaled, so that steps with different scales add up correctly.  Scales are
powers of two in loss scalers, so they change no bit of a float32 that neither overflows nor
underflows.
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
    """InvalidOption if the scale is not valid."""
    if not math.isfinite(scale) or scale <= 0:
        raise InvalidOption(
            f"the loss scale is {scale!r}: a number above 0; grad_scaler= must be the scaler in use"
        )


def unscaled(gradient: np.ndarray, scale: float) -> np.ndarray:
    """Return the gradient of the unscaled loss: the argument if the scale is 1, else a new
    array."""
    if scale == 1.0:
        return gradient
    with np.errstate(over="ignore"):  # checked when the gradient is accumulated
        plain: np.ndarray = gradient / gradient.dtype.type(scale)
    return plain


def rescaled(gradient: np.ndarray, scale: float) -> np.ndarray:
    """Return the gradient times the scale, which the loss scaler divides by; the argument if the
    scale is 1."""
    if scale == 1.0:
        return gradient
    with np.errstate(over="ignore"):
        scaled: np.ndarray = gradient * gradient.dtype.type(scale)
    return scaled


def stays_finite(gradient: np.ndarray, dtype: str, kernels: Kernels | ModuleType) -> bool:
    """Return whether a reduced gradient stays finite when cast to a dtype; one pass.

    gradient : if it is on a device, the check waits for the device
    dtype : of the parameter
    """
    if not isinstance(gradient, np.ndarray):
        moments: Moments = kernels.moments(gradient)
        return moments.is_finite and (dtype != "float16" or moments.abs_max < HALF_LIMIT)
    if dtype == "float16":
        return not gradient.size or float(np.abs(gradient).max()) < HALF_LIMIT
    return is_finite(gradient)
