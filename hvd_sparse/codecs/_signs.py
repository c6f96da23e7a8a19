"""Codecs that send signs and one magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._gaps import unpack
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.core.kernels import packing
from hvd_sparse.core.kernels.packing import Packers
from hvd_sparse.core.wire.frame import Frame, need, open_frame, selection_from, write_frame
from hvd_sparse.types import Selection

INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}
"""Its bits, by the width of a float."""


@dataclass(frozen=True)
class SignCodec(Codec):
    """Base of the codecs that send every value as + or - one magnitude, which stands first in the
    body.

    Values that are exactly zero have no sign, and are not sent.  Selectors that send signs
    (AdaComp, STC, EF-sign, TernGrad, Strom) already give all values one magnitude; with them these
    codecs are exact.
    """

    @property
    def is_exact(self) -> bool:
        return False

    def magnitude(self, magnitudes: np.ndarray) -> float:
        """The one to send for all; itself where they are equal.  Their mean, unless a codec says
        otherwise."""
        mean = float(magnitudes.mean(dtype=np.float64))
        smallest, largest = float(magnitudes.min()), float(magnitudes.max())
        return min(max(mean, smallest), largest)  # float64 sums may round, or overflow

    def encode(self, selection: Selection, kernels: Packers = packing) -> np.ndarray:
        assert self.number is not None
        kept = _without_zeros(selection)
        dtype = kept.values.dtype.newbyteorder("<")
        scale = np.zeros(1, dtype)
        if kept.count:
            scale[0] = self.magnitude(np.abs(kept.values))
        parts = self.encode_signs(kept.indices, np.signbit(kept.values), kept.numel)
        return write_frame(self.number, dtype, kept.numel, kept.count, [scale, *parts])

    def decode(self, buffer: np.ndarray, kernels: Packers = packing) -> Selection:
        frame = open_frame(buffer, self)
        width = frame.value_type.itemsize
        need(frame.body.size >= width, f"{frame.body.size} bytes are too few for a magnitude")
        scale = frame.body[:width].view(frame.value_type)[0]
        bits = int.from_bytes(
            frame.body[:width].tobytes(), "little"
        )  # comparisons may take subnormal numbers for 0
        is_ours = 0 < bits < INFINITY[width] if frame.count else bits == 0
        need(is_ours, f"{frame.count} signs with the magnitude {scale}")
        indices, is_negative = self.decode_signs(frame.body[width:], frame)
        return selection_from(frame, indices, _signed(is_negative, scale))

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return value_bytes + self.signs_bytes(count, numel)

    def encode_signs(
        self, indices: np.ndarray, is_negative: np.ndarray, numel: int
    ) -> list[np.ndarray]:
        """Arrays to be written one after the other."""
        raise NotImplementedError

    def decode_signs(self, body: np.ndarray, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
        """(uint32 ascending indices [count], is negative [count]); CorruptPayload unless they fill
        the body exactly."""
        raise NotImplementedError

    def signs_bytes(self, count: int, numel: int) -> float:
        """As ``body_bytes``, without the magnitude."""
        raise NotImplementedError


def _without_zeros(selection: Selection) -> Selection:
    is_sent = selection.values != 0
    if is_sent.all():
        return selection
    return Selection(selection.indices[is_sent], selection.values[is_sent], selection.numel)


def _signed(is_negative: np.ndarray, scale: np.floating) -> np.ndarray:
    """A magnitude with signs, by its bits: a choice between two numbers at random costs ten times
    as much."""
    unsigned = np.dtype(f"u{scale.itemsize}")
    bits = is_negative.astype(unsigned)
    bits <<= unsigned.type(8 * scale.itemsize - 1)
    bits |= np.abs(scale).astype(scale.dtype.newbyteorder("=")).view(unsigned)
    return bits.view(f"f{scale.itemsize}")


def encode_bits(is_set: np.ndarray) -> np.ndarray:
    """uint8 [ceil(size / 8)]: the first bit lowest, padded with zeros."""
    return np.packbits(is_set, bitorder="little")


def decode_bits(packed: np.ndarray, count: int) -> np.ndarray:
    """bool [count]; CorruptPayload unless they fill the bytes exactly."""
    need(packed.size == -(-count // 8), f"{count} bits cannot fill {packed.size} bytes")
    return unpack(packed, 1, count).view(np.bool_)
