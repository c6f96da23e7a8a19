"""Tables with a row for each tensor of a bucket, so that one call of an engine processes the whole
bucket (docs/adr/0040). The results have the same bits as those of ``step.pipeline``, which
processes one tensor after another.

The engine leaves a row to the pipeline if a value is not finite, if a sum might overflow, or if a
frame is damaged. It also does so if too few or too many entries reach the threshold of the row's
aim (``kernels.contract.Aim``). The pipeline then continues with the data that the engine has
written so far.
"""

from __future__ import annotations

import math
import struct
from ctypes import c_size_t
from functools import lru_cache

import numpy as np

LEAST, MOST = 0.0005, 0.3
"""Bounds of the margin: the fraction by which an aim lies below the tensor's previous threshold."""

SLACK, MOST_SLACK = 1.05, 2.5
"""If a pass takes fewer than ``SLACK`` times the needed entries, the margin grows. If few entries
are needed, a larger factor replaces ``SLACK``, up to ``MOST_SLACK``, because the standard deviation
of a count is about the square root of the count."""

SCATTER = 8.0
"""The part of the larger factor above ``SLACK`` covers this many standard deviations of a count."""

PLENTY = 4.0
"""If a pass takes at least this factor times the needed entries, the margin narrows faster than
otherwise."""

DECAY, MOMENTUM, ADAM = 2, 4, 15
"""Kinds of an optimizer's direction. Each kind is the number of vectors and numbers that it has; 0
is the gradient itself."""

PLAIN, SIGNS = 1, 2
"""Formats of a frame's body: that of codec ``index_value``, and that of codec ``sign_mean``."""

SENT = np.dtype(
    [
        ("move", "i8"),  # kind of the direction, as above
        # Addresses of gradient, residual and the new residual, and of the direction's vectors.
        ("vectors", "u8", 7),
        ("numbers", "f8", 11),  # numbers of the direction, such as Adam's factors
        ("numel", "i8"),  # entries of each vector
        ("aim", "f8"),  # threshold of ``kernels.contract.Aim``
        ("capacity", "i8"),  # capacity of ``kernels.contract.Aim``
        # If ``least`` to ``most`` entries are taken, all are sent; of more, the ``wanted`` largest.
        ("least", "i8"),
        ("wanted", "i8"),
        ("most", "i8"),
        ("margin", "f8"),  # see ``LEAST``; replaced by the margin for the next step
        ("start", "i8"),  # place of the row's frame in ``frames``, in bytes
        # ``memories.contract.Release``: addresses, 0 if whole entries are sent, and numbers.
        ("sent_in", "u8"),
        ("shares", "u8"),
        ("ages", "i8"),
        ("step", "i8"),
        # The engine writes the fields below.
        ("nbytes", "i8"),  # bytes of the frame
        ("taken", "i8"),  # number of taken entries; -1 if they exceed the capacity
        ("sent", "i8"),  # number of sent entries; -1 if the row is left to the pipeline
        ("nonfinite", "i8"),  # as in ``Taking``
        ("threshold", "f8"),  # smallest magnitude of the sent entries, or the aim's threshold
    ]
)
"""Row of a tensor whose gradient is to be sent."""

ARRIVED = np.dtype(
    [
        ("out", "u8"),  # address of the sum
        ("numel", "i8"),  # entries of the sum
        ("first", "i8"),  # number of the row's first frame
        ("parts", "i8"),  # number of the row's frames
        ("factor", "f8"),  # by which the sum is multiplied
        # Written by the engine: upper bound of magnitudes; NaN if the pipeline must write ``out``.
        ("most", "f8"),
    ]
)
"""Row of a tensor whose frames have been received."""
ARRIVED_ROW = struct.Struct("=Q3qd8x")

FRAME = np.dtype([("at", "u8"), ("nbytes", "i8")])
"""A received frame: its address and length."""
FRAME_ROW = struct.Struct("=Qq")


@lru_cache
def sent_row(vectors: int, numbers: int) -> struct.Struct:
    """Return the format of a row of ``SENT`` with so many vectors and numbers, up to the fields
    that the engine writes. Packing bytes is faster than assigning a tuple in numpy."""
    none = 8 * (7 - vectors), 8 * (11 - numbers)
    return struct.Struct(f"=q{vectors}Q{none[0]}x{numbers}d{none[1]}xqd4qdq2Q2q40x")


_word_at, _HEADER_SIZE = c_size_t.from_address, object.__basicsize__


def address(x: np.ndarray) -> int:
    """Return the address of a contiguous array: the first field of an array in NumPy's C interface.
    NumPy's attributes take several times as long."""
    return _word_at(id(x) + _HEADER_SIZE).value


def steered(margin: float, found: int, needed: int) -> float:
    """Return the margin for the next step. The margin is the fraction by which the threshold for
    taking entries lies below the tensor's previous threshold. With the given ``margin``, ``found``
    entries were taken, and ``needed`` would have been enough. Numba compiles this function, too."""
    if found < needed:
        wanted = 2.0 * margin + 0.001
    elif found < min(MOST_SLACK, SLACK + SCATTER / math.sqrt(max(1, needed))) * needed:
        wanted = 1.2 * margin
    else:
        wanted = (0.98 if found < PLENTY * needed else 0.93) * margin
    return min(MOST, max(LEAST, wanted))
