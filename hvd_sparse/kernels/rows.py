"""A bucket's tensors as rows of a table, so that one call of an engine walks all of them.

An engine that has ``RowKernels`` does in one call what the walk of ``step.pipeline`` does a tensor
at a time, bit by bit, as far as nothing unusual happens: where the pass took too few entries or too
many, where something is not finite or a frame is not whole, the row is left to that walk, which
goes on from what was found.  Engines without it leave all rows to the walk.
"""

from __future__ import annotations

import math
import struct
import sys
from ctypes import addressof, c_char
from types import ModuleType
from typing import Protocol, cast

import numpy as np

from hvd_sparse.kernels.contract import Kernels

LEAST, MOST = 0.0005, 0.3
"""Bounds of the margin."""

SLACK, MOST_SLACK = 1.05, 2.5
"""Candidates over those needed, below which a step was nearly a miss and the next one aims lower.

The bound is higher where few are needed, as counts scatter with their square root."""

SCATTER = 8.0
"""Standard deviations of a count that the slack is to be good for."""

PLENTY = 4.0
"""Candidates over those needed, above which the margin narrows faster."""

GRADIENT, MOMENTUM, ADAM = range(3)
"""Passes of a row: ``accumulate_and_take``, ``push_momentum_and_take``, ``push_adam_and_take``."""

PLAIN, SIGNS = 1, 2
"""Bodies of frames: indices and values as they lie in memory; and those of codec ``sign_mean``."""

SENT = np.dtype(
    [
        ("move", "i8"),
        ("vectors", "u8", 7),
        ("numbers", "f8", 11),
        ("numel", "i8"),
        ("aim", "f8"),
        ("capacity", "i8"),
        ("least", "i8"),
        ("wanted", "i8"),
        ("most", "i8"),
        ("margin", "f8"),
        ("start", "i8"),
        ("nbytes", "i8"),
        ("taken", "i8"),
        ("sent", "i8"),
        ("nonfinite", "i8"),
        ("abs_sum", "f8"),
        ("threshold", "f8"),
    ]
)
"""A tensor that is sent.

move : the pass
vectors : addresses of gradient, residual and the new residual; for momentum, of the old and the
    new velocity; for Adam, of mean and square, and of the new ones
numbers : for momentum, the factor and whether the form is Nesterov's; for Adam
    ``AdamStep.factors``, and whether the direction is the mean's
numel : entries of each vector
aim, capacity : of the pass, as ``Aim``
least, wanted, most : the band of entries that may be sent: of more the ``wanted`` largest are
margin : below the last threshold, which the aim has; read, and written for the next step
start : byte of the frames at which this one's goes
nbytes : written: bytes of the frame
taken, nonfinite, abs_sum : written: entries that the pass took, -1 where they were too many; and as
    ``Taking`` has them
sent, threshold : written: entries that are sent, -1 where the row is left to the walk, and what
    chose them
"""

SENT_ROW = struct.Struct("=q7Q11dqd4qd5q2d")
"""A row of ``SENT`` as bytes: several times as fast as what numpy makes of a tuple."""

ARRIVED = np.dtype(
    [
        ("out", "u8"),
        ("numel", "i8"),
        ("first", "i8"),
        ("parts", "i8"),
        ("factor", "f8"),
        ("most", "f8"),
    ]
)
"""A tensor that comes back.

out, numel : address of the sum, and its entries
first, parts : its frames among all: the first, and how many
factor : of the sum
most : written: a bound of the sum's magnitudes, as ``Gathered``; NaN where the row is left to the
    walk, and nothing was written
"""

FRAME = np.dtype([("at", "u8"), ("nbytes", "i8")])
"""A frame that arrived: its address and length."""


class RowKernels(Protocol):
    """What an engine can do with all rows of a bucket in one call."""

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
        """Walk rows to their frames, up to the first one that is left to the walk.

        Parameters
        ----------
        rows : ``SENT``; read and written
        first : row to begin at
        head : the first 8 bytes of every frame, as an integer
        frames : uint8, written, at a multiple of 8 bytes
        lists : uint8, written, as long: the entries as other ranks decode them, where a plain
            frame has them; for a plain body ``frames`` itself, for signs the frames begin as zeros
        body : of the frames, ``PLAIN`` or ``SIGNS``
        dtype : of the vectors

        Returns
        -------
        The row that was left, or the number of rows; and the entries that its pass took, which are
        not in its vector.
        """

    def sum_rows(
        self, rows: np.ndarray, frames: np.ndarray, head: int, body: int, dtype: np.dtype
    ) -> None:
        """Check the frames of every row, and write its factor * their sum, in their order.

        Parameters
        ----------
        rows, frames : ``ARRIVED`` and ``FRAME``
        head : the first 8 bytes that every frame must have, as an integer
        body, dtype : of the frames, and of the vectors
        """


def address(x: np.ndarray) -> int:
    """Return where a contiguous array begins."""
    try:  # several times as fast as what numpy tells of it
        return addressof(c_char.from_buffer(x.data))
    except (TypeError, ValueError):  # it may not be written to, or is empty
        return int(x.__array_interface__["data"][0])


def rows_of(kernels: Kernels | ModuleType) -> RowKernels | None:
    """Return what an engine does with rows; None where it has nothing for them."""
    has_rows = hasattr(kernels, "send_rows") and sys.byteorder == "little"
    return cast(RowKernels, kernels) if has_rows else None


def steered(margin: float, found: int, needed: int) -> float:
    """Return the next margin below a threshold.

    Plain arithmetic, which the compiled engine compiles.

    Parameters
    ----------
    margin : of this step
    found : entries that the pass took
    needed : fewest that do
    """
    if found < needed:
        wanted = 2.0 * margin + 0.001
    elif found < min(MOST_SLACK, SLACK + SCATTER / math.sqrt(max(1, needed))) * needed:
        wanted = 1.2 * margin
    else:
        wanted = (0.98 if found < PLENTY * needed else 0.93) * margin
    return min(MOST, max(LEAST, wanted))
