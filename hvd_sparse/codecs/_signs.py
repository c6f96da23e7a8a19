"""The base class of codecs that send each entry's sign, and a single magnitude for all entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, open_frame, write_frame

MIXED, PLUS, MINUS = 0, 1, 2

Signs = tuple[np.ndarray, np.ndarray]
"""Entries' indices, uint32 [count], ascending; and whether each entry is negative, bool [count]."""

INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}
"""The bit pattern of infinity, for floats of 4 and of 8 bytes."""


@dataclass(frozen=True)
class SignCodec(Codec):
    """Base class of codecs that send every value as plus or minus the mean magnitude.

    The body of a frame (the bytes after its header) starts with the magnitude. Exact zeros have no
    sign, and are not sent. Decoding is exact if all values have the same magnitude, as with the
    selectors ``adacomp``, ``stc``, ``ef_sign``, ``terngrad`` and
    ``fixed_threshold(signs_only=True)``.
    """

    is_exact = sends_zeros = False

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        assert self.number is not None
        kept = selection.without_zeros()
        dtype = kept.values.dtype
        scale = np.zeros(1, dtype)
        if kept.count:
            scale[0] = _mean(np.abs(kept.values))
        parts = [scale, *self.encode_signs(kept, kernels)]
        return write_frame(self.number, dtype, kept.numel, kept.count, parts)

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self)
        width = frame.value_type.itemsize
        need(frame.body.size >= width, f"a body of {frame.body.size} bytes has no magnitude")
        scale = frame.body[:width].view(frame.value_type)[0]
        # Compare as an integer, because float comparisons may flush subnormal numbers to 0.
        bits = int.from_bytes(frame.body[:width].tobytes(), "little")
        is_ours = 0 < bits < INFINITY[width] if frame.count else bits == 0
        need(is_ours, f"no encoder writes the magnitude {scale} for {frame.count} signs")
        frame.body = frame.body[width:]
        indices, is_negative = self.decode_signs(frame, kernels)
        return Selection(indices, _signed(is_negative, scale), frame.numel)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return value_bytes + self.signs_bytes(count, numel)

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        """Return arrays that encode the indices and signs of the selection ``kept``, which has no
        zeros. In the body of the frame, these arrays follow the magnitude."""
        raise NotImplementedError

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        """Return the indices and signs in ``frame.body``, from which the magnitude has been
        removed. Raises CorruptPayload unless the indices and signs fill the body exactly."""
        raise NotImplementedError

    def signs_bytes(self, count: int, numel: int) -> float:
        raise NotImplementedError


def _mean(magnitudes: np.ndarray) -> float:
    # Add one by one, as compiled ``kernels.rows`` do, so that both results have the same bits.
    mean = float(magnitudes.cumsum(dtype=np.float64)[-1]) / magnitudes.size
    smallest, largest = float(magnitudes.min()), float(magnitudes.max())
    return min(max(mean, smallest), largest)  # the sum may round or overflow


def _signed(is_negative: np.ndarray, scale: np.floating) -> np.ndarray:
    """Return ``-scale`` for each negative entry and ``scale`` for each other entry, ten times as
    fast as ``np.where`` would."""
    unsigned = np.dtype(f"u{scale.itemsize}")
    bits = is_negative.astype(unsigned)
    bits <<= unsigned.type(8 * scale.itemsize - 1)
    bits |= np.abs(scale).view(unsigned)
    return bits.view(f"f{scale.itemsize}")
