"""The table of a bucket's tensors, by which one call of an engine processes all of them.

A row describes a tensor. An engine with ``RowKernels`` computes the same bits in one call as
``step.pipeline`` does tensor by tensor. Rows with too few or too many taken entries, values that
are not finite or damaged frames are left to the pipeline, which continues from their state. Other
engines leave all rows to the pipeline.
"""

from __future__ import annotations

import math
import struct
import sys
from ctypes import addressof, c_char
from typing import Protocol, cast

import numpy as np

from hvd_sparse.kernels.contract import Kernels

LEAST, MOST = 0.0005, 0.3
"""Bounds of the margin, by which an aim lies below the last threshold."""

SLACK, MOST_SLACK = 1.05, 2.5
"""With fewer candidates than this factor times the needed entries, the next step aims lower.

The factor grows up to ``MOST_SLACK`` for few needed entries, because the standard deviation of a
count is about its square root.
"""

SCATTER = 8.0
"""Standard deviations of a count that the slack covers."""

PLENTY = 4.0
"""With more candidates than this factor times the needed entries, the margin narrows faster."""

GRADIENT, MOMENTUM, ADAM = 0, 4, 15
"""Number of a direction's vectors and numbers, which identifies its kind; 0 for the gradient."""

PLAIN, SIGNS = 1, 2
"""Bodies of frames: plain indices and values, and those of codec ``sign_mean``."""

SENT = np.dtype(
    [
        ("move", "i8"),  # kind of the direction
        # Addresses of gradient, residual and the new residual, and of the direction's vectors.
        ("vectors", "u8", 7),
        ("numbers", "f8", 11),  # of the direction
        ("numel", "i8"),  # entries of each vector
        ("aim", "f8"),  # threshold and capacity of the pass
        ("capacity", "i8"),
        ("least", "i8"),  # entries that may be sent; of more than ``most`` the ``wanted`` largest
        ("wanted", "i8"),
        ("most", "i8"),
        ("margin", "f8"),  # of the aim below the last threshold; written for the next step
        ("start", "i8"),  # first byte of the row's frame in ``frames``
        # Written:
        ("nbytes", "i8"),  # bytes of the frame
        ("taken", "i8"),  # number of taken entries; -1 if they exceed the capacity
        ("sent", "i8"),  # number of sent entries; -1 if the row is left to the pipeline
        ("nonfinite", "i8"),  # as in ``Taking``
        ("abs_sum", "f8"),
        ("threshold", "f8"),  # of the sent entries
    ]
)
"""Row of a tensor to send."""

SENT_ROW = struct.Struct("=q7Q11dqd4qd5q2d")
"""A row of ``SENT`` as bytes, faster than assigning a tuple in numpy."""

ARRIVED = np.dtype(
    [
        ("out", "u8"),  # address and entries of the sum
        ("numel", "i8"),
        ("first", "i8"),  # the first of its frames, and their number
        ("parts", "i8"),
        ("factor", "f8"),  # of the sum
        # Written: a bound of the sum's magnitudes, as in ``Gathered``; NaN if the row is left to
        # the pipeline, and nothing was written.
        ("most", "f8"),
    ]
)
"""Row of a tensor to receive."""

FRAME = np.dtype([("at", "u8"), ("nbytes", "i8")])
"""A received frame: its address and length."""


class RowKernels(Protocol):
    """Kernels of an engine that process all rows of a bucket in one call."""

    def send_rows(
        self,
        rows: np.ndarray,
        first: int,
        head: int,
        frames: np.ndarray,
        lists: np.ndarray,
        body: int,
        dtype: np.dtype,
    ) -> tuple[int, np.ndarray, np.ndarray]:
        """Encode rows as frames, up to the first row that is left to the pipeline.

        Returns the number of the row that is left, or of all rows; and the indices and values that
        its pass took out of the vector.

        rows, first : ``SENT``, read and written, and the row to begin at
        head : the first 8 bytes of every frame, as an integer
        frames : uint8, aligned to 8 bytes; written
        lists : uint8, as long as ``frames``; written: the entries as other ranks decode them, at
            the places of a plain frame. For a plain body ``frames`` itself
        body, dtype : ``PLAIN`` or ``SIGNS``, and of the vectors
        """

    def sum_rows(
        self, rows: np.ndarray, frames: np.ndarray, head: int, body: int, dtype: np.dtype
    ) -> None:
        """Check the frames, ``FRAME``, of every row, ``ARRIVED``, and write factor * their sum,
        added in their order; the other arguments as in ``send_rows``."""


def address(x: np.ndarray) -> int:
    """Return the address of a contiguous array."""
    try:  # several times as fast as numpy's attributes
        return addressof(c_char.from_buffer(x.data))
    except (TypeError, ValueError):  # read-only or empty
        return int(x.__array_interface__["data"][0])


def rows_of(kernels: Kernels) -> RowKernels | None:
    """Return an engine's kernels for rows; None if it has none."""
    has_rows = hasattr(kernels, "send_rows") and sys.byteorder == "little"
    return cast(RowKernels, kernels) if has_rows else None


def steered(margin: float, found: int, needed: int) -> float:
    """Return the next margin below a threshold, after a pass took ``found`` entries where
    ``needed`` suffice; numba compiles this, too."""
    if found < needed:
        wanted = 2.0 * margin + 0.001
    elif found < min(MOST_SLACK, SLACK + SCATTER / math.sqrt(max(1, needed))) * needed:
        wanted = 1.2 * margin
    else:
        wanted = (0.98 if found < PLENTY * needed else 0.93) * margin
    return min(MOST, max(LEAST, wanted))
