"""Norms and waiting times that telemetry takes of a tensor's step."""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse.exchanges.members import Observed
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import Selection


def observe(state: TensorState, vector: np.ndarray, sent: Selection, is_taken: bool) -> Observed:
    """Compare what is sent with what there was."""
    there = squared(vector)
    if is_taken:  # the vector has zeros there
        kept, there = there, there + squared(sent.values)
    else:
        left = vector[sent.indices]
        kept = there - squared(left) + squared(left - sent.values)
    return Observed(max(kept, 0.0), there, state.waited(sent.indices))


def norm_left(observed: Observed, vector: np.ndarray, is_taken: bool) -> float:
    """Return the norm of what stays: that before, where what is sent was missing already."""
    return math.sqrt(observed.kept_squared if is_taken else squared(vector))


def squared(x: np.ndarray) -> float:
    """Return the squared L2 norm."""
    return float(x.dot(x))
