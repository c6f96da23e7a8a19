"""The table of a bucket's tensors, with which one call of an engine processes all of them.

Every row describes a tensor. An engine with ``RowKernels`` computes in one call the same bits as
``step.pipeline`` does tensor by tensor. It leaves a row to the pipeline, which continues from the
row's state, if too few or too many entries were taken, a value is not finite, or a frame is
damaged. Other engines leave all rows to the pipeline.
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
"""Bounds of the margin: the fraction by which an aim lies below the tensor's last threshold."""

SLACK, MOST_SLACK = 1.05, 2.5
"""If a pass takes fewer than this factor times the needed entries, the next step's threshold is
lower.

For few needed entries the factor grows up to ``MOST_SLACK``, because the standard deviation of a
count is about its square root.
"""

SCATTER = 8.0
"""Number of standard deviations of a count that the slack covers."""

PLENTY = 4.0
"""If a pass takes more than this factor times the needed entries, the margin narrows faster."""

GRADIENT, MOMENTUM, ADAM = 0, 4, 15
"""Number of vectors and numbers of a direction, which identifies its kind; 0 stands for the
gradient."""

PLAIN, SIGNS = 1, 2
"""Numbers of the frames' bodies: plain indices and values, and those of codec ``sign_mean``."""

SENT = np.dtype(
    [
        ("move", "i8"),  # kind of the direction
        # Addresses of gradient, residual and the new residual, and of the direction's vectors.
        ("vectors", "u8", 7),
        ("numbers", "f8", 11),  # of the direction
        ("numel", "i8"),  # entries of each vector
        ("aim", "f8"),  # threshold and capacity of the pass
        ("capacity", "i8"),
        # From ``least`` to ``most`` entries are sent; if more were taken, the ``wanted`` largest.
        ("least", "i8"),
        ("wanted", "i8"),
        ("most", "i8"),
        ("margin", "f8"),  # see ``LEAST``; the next step's margin is written
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
"""Row of a tensor whose gradient is to be sent."""

SENT_ROW = struct.Struct("=q7Q11dqd4qd5q2d")
"""A row of ``SENT`` as bytes. Packing it is faster than assigning a tuple in numpy."""

ARRIVED = np.dtype(
    [
        ("out", "u8"),  # address of the sum
        ("numel", "i8"),  # entries of the sum
        ("first", "i8"),  # number of the row's first frame
        ("parts", "i8"),  # number of the row's frames
        ("factor", "f8"),  # by which the sum is multiplied
        # Written: a bound of the sum's magnitudes, as in ``Gathered``; NaN if the row is left to
        # the pipeline, and nothing was written.
        ("most", "f8"),
    ]
)
"""Row of a tensor whose frames have been received."""

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

        Returns the number of the row that is left, or of all rows; and the indices and values of
        the entries that this row's pass took out of the vector.

        rows, first : table of ``SENT``, read and written, and the row to begin at
        head : the first 8 bytes of every frame, as an integer
        frames : uint8, aligned to 8 bytes; written
        lists : uint8, as long as ``frames``; the entries as other ranks decode them are written
            here, at the places of a plain frame. For a plain body this is ``frames`` itself
        body : ``PLAIN`` or ``SIGNS``
        dtype : dtype of the vectors
        """

    def sum_rows(
        self, rows: np.ndarray, frames: np.ndarray, head: int, body: int, dtype: np.dtype
    ) -> None:
        """Check the frames of every row, and write ``factor`` times the sum of their entries,
        added in the order of the frames.

        rows, frames : tables of ``ARRIVED`` and ``FRAME``; head, body and dtype as in ``send_rows``
        """


def address(x: np.ndarray) -> int:
    """Return the address of a contiguous array."""
    try:  # several times as fast as numpy's attributes
        return addressof(c_char.from_buffer(x.data))
    except (TypeError, ValueError):  # read-only or empty
        return int(x.__array_interface__["data"][0])


def rows_of(kernels: Kernels) -> RowKernels | None:
    """Return the engine's kernels as ``RowKernels``; None if it has no kernels for rows."""
    has_rows = hasattr(kernels, "send_rows") and sys.byteorder == "little"
    return cast(RowKernels, kernels) if has_rows else None


def steered(margin: float, found: int, needed: int) -> float:
    """Return the next step's margin, after a pass took ``found`` entries where ``needed`` suffice.
    numba compiles this function, too."""
    if found < needed:
        wanted = 2.0 * margin + 0.001
    elif found < min(MOST_SLACK, SLACK + SCATTER / math.sqrt(max(1, needed))) * needed:
        wanted = 1.2 * margin
    else:
        wanted = (0.98 if found < PLENTY * needed else 0.93) * margin
    return min(MOST, max(LEAST, wanted))
