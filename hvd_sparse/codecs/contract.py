"""The contract of codecs, which encode selections as bytes, and the base class of codecs that send
each entry's sign and a single magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import Options, count_from_density
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, open_frame, write_frame

MIXED, PLUS, MINUS = 0, 1, 2

Signs = tuple[np.ndarray, np.ndarray]
"""Entries' indices, uint32 [count], ascending; and whether each entry is negative, bool [count]."""


@dataclass(frozen=True)
class Codec(Options):
    """Base class of codecs: frozen dataclasses, registered in ``CODECS``.

    A codec encodes finite values only; decoders refuse NaN and Inf.

    Attributes
    ----------
    number : number that identifies the codec in frames, and never changes; None for a codec that
        lets another codec write the frames. 12 is reserved for a removed codec
    is_exact : decoded values equal the encoded ones bit for bit; if not, memories keep the errors
    sends_zeros : selected entries that are exactly zero are sent
    row_body : identifier of the body's format in ``kernels.rows``, which encodes many tensors in
        one call; 0 if ``kernels.rows`` does not support the codec
    is_exact_for_signs : decoding is exact if all values have the same magnitude
    has_fixed_size : the number of bytes depends only on ``count``, ``numel`` and ``value_bytes``,
        so that ``body_bytes`` is exact
    needs_host : the reason why gradients on an accelerator must be copied to the host, as the end
        of a sentence about the codec; empty if the copy is not needed
    """

    id: ClassVar[str]
    number: ClassVar[int | None]
    is_exact: ClassVar[bool] = True
    sends_zeros: ClassVar[bool] = True
    row_body: ClassVar[int] = 0
    is_exact_for_signs: ClassVar[bool] = True
    has_fixed_size: ClassVar[bool] = True
    needs_host: ClassVar[str] = "is not known to work on devices"

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        """Return a selection, encoded as one frame (a header and a body), uint8 [bytes].

        Parameters
        ----------
        selection : the entries to send, with finite values
        kernels : an engine's kernels for codecs; all engines produce the same bytes

        Examples
        --------
        >>> import numpy as np
        >>> from hvd_sparse.registry import CODECS
        >>> from hvd_sparse.types import Selection
        >>> codec = CODECS.create("index_value")
        >>> chosen = Selection(np.array([1, 3], np.uint32), np.array([-3, 2], np.float32), numel=4)
        >>> frame = codec.encode(chosen)
        >>> frame.size  # a header of 32 bytes, and 8 bytes an entry
        48
        >>> codec.decode(frame).values
        array([-3.,  2.], dtype=float32)
        """
        raise NotImplementedError

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        """Return the selection that is encoded in a buffer, uint8 [bytes], of exactly one frame.

        Decoding is strict: encoding the returned selection gives the same bytes again. The buffer's
        length bounds the memory that decoding allocates.

        Raises
        ------
        CorruptPayload : the buffer is not exactly one valid frame of this codec
        """
        raise NotImplementedError

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        """Return the number of bytes in the body of a frame with ``count`` of a tensor's ``numel``
        entries. With ``has_fixed_size`` the number is exact, and otherwise it is the expected
        number for random indices. ``value_bytes`` is 4 for float32 values, 8 for float64 values."""
        raise NotImplementedError

    def entry_bytes(self, numel: int, density: float, value_bytes: int = 4) -> float:
        """Return the expected number of bytes of a frame's body per sent entry; it is equal on all
        ranks. ``value_bytes`` is as for ``body_bytes``."""
        count = max(1, count_from_density(numel, density))
        return self.body_bytes(count, max(1, numel), value_bytes) / count

    def at_density(self, density: float) -> Codec:
        """Return the codec to use at this density. It is this codec, unless the codec's own option
        ``density`` is None; then it is a copy with this density."""
        return self


@dataclass(frozen=True)
class SignCodec(Codec):
    """Base class of codecs that send every value as plus or minus the mean magnitude.

    The body of a frame (the bytes after its header) starts with the magnitude. Exact zeros have no
    sign, and are not sent.
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
        # Compare with 0 as an integer, because float comparisons may flush subnormal numbers to 0.
        bits = int.from_bytes(frame.body[:width].tobytes(), "little", signed=True)
        is_ours = bits > 0 and bool(np.isfinite(scale)) if frame.count else bits == 0
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
    with np.errstate(over="ignore"):
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
