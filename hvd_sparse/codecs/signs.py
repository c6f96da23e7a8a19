"""Codecs that send signs and one magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import (
    decode_bits,
    decode_gaps,
    decode_presence,
    encode_bits,
    encode_gaps,
    encode_presence,
    gaps_bytes,
    presence_bytes,
    unpack,
)
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.kernels.rows import SIGNS
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import (
    Frame,
    need,
    need_ascending,
    need_size,
    open_frame,
    selection_from,
    write_frame,
)

MIXED, PLUS, MINUS = 0, 1, 2

Signs = tuple[np.ndarray, np.ndarray]
"""Indices, uint32 ascending, and whether the entries are negative, bool [count]."""

INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}
"""Bit pattern of infinity, by the itemsize of the float."""


@dataclass(frozen=True)
class SignCodec(Codec):
    """Base class of codecs that send every value as plus or minus one magnitude.

    The body starts with the magnitude. Exact zeros have no sign and are not sent. Selectors of
    signs (AdaComp, STC, EF-sign, TernGrad, Strom) already give all values one magnitude, for which
    these codecs are exact.
    """

    is_exact = sends_zeros = False

    def magnitude(self, magnitudes: np.ndarray) -> float:
        """Return the magnitude to send for all values: by default the mean, which is exact for
        equal magnitudes."""
        # Add sequentially, because compiled rows do so, too.
        mean = float(magnitudes.cumsum(dtype=np.float64)[-1]) / magnitudes.size
        smallest, largest = float(magnitudes.min()), float(magnitudes.max())
        return min(max(mean, smallest), largest)  # the float64 sum may round or overflow

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        assert self.number is not None
        kept = selection.without_zeros()
        dtype = kept.values.dtype.newbyteorder("<")
        scale = np.zeros(1, dtype)
        if kept.count:
            scale[0] = self.magnitude(np.abs(kept.values))
        parts = [scale, *self.encode_signs(kept, kernels)]
        return write_frame(self.number, dtype, kept.numel, kept.count, parts)

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self)
        width = frame.value_type.itemsize
        need(frame.body.size >= width, f"a body of {frame.body.size} bytes has no magnitude")
        scale = frame.body[:width].view(frame.value_type)[0]
        # As an integer, because float comparisons may flush subnormal numbers to 0.
        bits = int.from_bytes(frame.body[:width].tobytes(), "little")
        is_ours = 0 < bits < INFINITY[width] if frame.count else bits == 0
        need(is_ours, f"a payload of {frame.count} signs has the magnitude {scale}")
        frame.body = frame.body[width:]
        indices, is_negative = self.decode_signs(frame, kernels)
        return selection_from(frame, indices, _signed(is_negative, scale))

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return value_bytes + self.signs_bytes(count, numel)

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        """Return the indices and signs of non-zero entries as arrays, to be concatenated."""
        raise NotImplementedError

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        """Decode the rest of a frame's body; CorruptPayload unless it is filled exactly."""
        raise NotImplementedError

    def signs_bytes(self, count: int, numel: int) -> float:
        raise NotImplementedError


def _signed(is_negative: np.ndarray, scale: np.floating) -> np.ndarray:
    """Return plus or minus ``scale`` by setting sign bits; ten times as fast as ``np.where``."""
    unsigned = np.dtype(f"u{scale.itemsize}")
    bits = is_negative.astype(unsigned)
    bits <<= unsigned.type(8 * scale.itemsize - 1)
    bits |= np.abs(scale).astype(scale.dtype.newbyteorder("=")).view(unsigned)
    return bits.view(f"f{scale.itemsize}")


@CODECS.register("sign_index")
@dataclass(frozen=True)
class SignIndex(SignCodec):
    """Send 2 * index + (1 if negative) for every entry, in 32 bits, and the smallest magnitude.

        body: float32 or float64 magnitude; uint32 words [count]

    The smallest magnitude stands for the paper's threshold; the excess of larger values stays in
    the residual. Tensors have at most 2^31 entries. Cost: a copy of the indices, for encoding and
    for decoding.

    Paper: strom2015scalable.
    """

    paper = "strom2015scalable"
    number = 7
    numel_limit = 2**31 + 1
    needs_host = ""

    def magnitude(self, magnitudes: np.ndarray) -> float:
        return float(magnitudes.min())

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        if kept.numel >= self.numel_limit:
            raise UnsupportedInput(
                f"codec sign_index has 31 bits for an index, and the tensor has {kept.numel} "
                "entries: use codec='sign_mean', or split the tensor"
            )
        words = kept.indices << np.uint32(1)
        words |= np.signbit(kept.values)
        return [words.astype("<u4", copy=False)]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        need_size(frame, 4 * frame.count)
        words = frame.body.view("<u4")
        indices = words >> np.uint32(1)
        need(
            frame.numel < self.numel_limit,
            f"a tensor of {frame.numel} entries is too long for 31-bit indices",
        )
        need_ascending(indices, frame.numel)
        return indices, (words & np.uint32(1)).astype(np.bool_)

    def signs_bytes(self, count: int, numel: int) -> float:
        return 4 * count


@CODECS.register("sign_mean")
@dataclass(frozen=True)
class SignMean(SignCodec):
    """Send the Golomb-coded gaps between indices, a sign bit per entry, and the mean magnitude.

        body: float32 or float64 magnitude; the gaps (as in ``golomb``); a bit for every entry, 1 if
              negative

    An entry costs 12.4 bits at density 0.001. Cost: that of ``golomb``, and one pass over the
    values for their mean.

    Paper: sattler2019stc.
    """

    paper = "sattler2019stc"
    number = 8
    row_body = SIGNS
    has_fixed_size = False
    needs_host = ""

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        gaps = encode_gaps(kept.indices, kept.numel, kernels)
        return [gaps, encode_bits(np.signbit(kept.values))]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, count = frame.body, frame.count
        offset = body.size - -(-count // 8)
        need(offset >= 0, f"a body of {body.size} bytes cannot hold {count} signs")
        is_negative = decode_bits(body[offset:], count)
        return decode_gaps(body[:offset], count, frame.numel, kernels), is_negative

    def signs_bytes(self, count: int, numel: int) -> float:
        return gaps_bytes(count, numel) + -(-count // 8)


@CODECS.register("one_sign")
@dataclass(frozen=True)
class OneSign(SignCodec):
    """Send the Golomb-coded gaps between indices, and the mean magnitude with one sign for all.

        body: float32 or float64 magnitude; a byte: 1 all plus or no entries, 2 all minus, 0 mixed;
              the gaps (as in ``golomb``); if the byte is 0, a bit for every entry, 1 if negative

    An entry costs 11.4 bits at density 0.001, one fewer than with ``sign_mean``, if all entries
    have the same sign, as those of selector ``sbc`` do. Cost: that of ``golomb``, and one pass over
    the values for their mean.

    Paper: sattler2019sbc.
    """

    paper = "sattler2019sbc"
    number = 14
    has_fixed_size = False
    needs_host = "is for selectors that work on the vector as an array of the host"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        is_negative = np.signbit(kept.values)
        kind, gaps = _kind_of(is_negative), encode_gaps(kept.indices, kept.numel, kernels)
        signs = [encode_bits(is_negative)] if kind == MIXED else []
        return [np.array([kind], np.uint8), gaps, *signs]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, count = frame.body, frame.count
        need(body.size > 0 and body[0] <= MINUS, "the byte for the kind of signs is not 0, 1 or 2")
        kind = int(body[0])
        offset = body.size - (-(-count // 8) if kind == MIXED else 0)
        need(offset >= 1, f"a body of {body.size} bytes cannot hold {count} signs")
        indices = decode_gaps(body[1:offset], count, frame.numel, kernels)
        if kind != MIXED:
            need(count > 0 or kind == PLUS, "a payload without entries is marked as all minus")
            return indices, np.full(count, kind == MINUS)
        is_negative = decode_bits(body[offset:], count)
        need(_kind_of(is_negative) == MIXED, "equal signs are marked as mixed")
        return indices, is_negative

    def signs_bytes(self, count: int, numel: int) -> float:
        return 1 + gaps_bytes(count, numel)


def _kind_of(is_negative: np.ndarray) -> int:
    minus = int(np.count_nonzero(is_negative))
    return PLUS if minus == 0 else MINUS if minus == is_negative.size else MIXED


@CODECS.register("ternary")
@dataclass(frozen=True)
class Ternary(SignCodec):
    """Send a word of 8 or 16 bits for every entry, and the count of every bin.

        body: float32 or float64 magnitude; uint8 or uint16 counts of the bins;
              uint8 or uint16 words [count]: 4 * (index within the bin) + 1 for plus, 2 for minus

    Words have 8 bits with bins of 64 entries, or 16 bits with bins of 16,384. The layout with fewer
    bytes is used; it is computed from count and numel. Cost: one count per entry and about six
    array operations, for encoding and for decoding.

    Paper: chen2018adacomp, which defines the words (6 or 14 bits of index, 2 of sign) but not how
    bins are delimited; here every bin has a count.  Departs: bins are as long as a word can
    address, instead of the selector's 50 or 500 entries, to save counts.
    """

    paper = "chen2018adacomp"
    number = 9
    needs_host = "is for selectors that work on the vector as an array of the host"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        indices = kept.indices
        width, bits, bins = _layout(kept.count, kept.numel)
        counts = np.bincount(indices >> np.uint32(bits), minlength=bins)
        words = (indices & np.uint32((1 << bits) - 1)) << np.uint32(2)
        words += np.signbit(kept.values)  # MINUS is PLUS + 1
        words += np.uint32(PLUS)
        return [counts.astype(f"<u{width}"), words.astype(f"<u{width}")]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, (width, bits, bins) = frame.body, _layout(frame.count, frame.numel)
        need(
            body.size == width * (bins + frame.count),
            f"{frame.count} words and {bins} bins do not fill {body.size} bytes",
        )
        counts = body[: width * bins].view(f"<u{width}")
        words = body[width * bins :].view(f"<u{width}")
        need(
            int(counts.sum(dtype=np.int64)) == frame.count,
            f"the counts of the bins do not add up to {frame.count}",
        )
        signs = words & words.dtype.type(3)
        need(bool(np.all((signs == PLUS) | (signs == MINUS))), "a word has no valid sign")
        indices = np.repeat(np.arange(bins, dtype=np.uint32) << np.uint32(bits), counts)
        indices += words >> words.dtype.type(2)
        need_ascending(indices, frame.numel)
        return indices, signs == MINUS

    def signs_bytes(self, count: int, numel: int) -> float:
        width, _, bins = _layout(count, numel)
        return width * (bins + count)


def _layout(count: int, numel: int) -> tuple[int, int, int]:
    """Return the bytes of a word, its bits of index and the number of bins."""
    narrow, wide = -(-numel // 64), -(-numel // 16_384)
    return (1, 6, narrow) if count + narrow <= 2 * (count + wide) else (2, 14, wide)


@CODECS.register("one_bit")
@dataclass(frozen=True)
class OneBit(SignCodec):
    """Send the sign of every entry of the tensor, 1 bit each, and one magnitude.

        body: float32 or float64 magnitude; unless all entries are sent, a bitmap of the sent
              entries; for every sent entry a bit, 1 if negative

    Exact zeros have no sign and are not sent. If there are any, the bitmap adds a second bit per
    entry of the tensor. Cost: one pass over one byte per entry of the tensor, two if there is a
    bitmap, for encoding and for decoding.

    Paper: karimireddy2019error.
    """

    paper = "karimireddy2019error"
    number = 10
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        presence = [encode_presence(kept.indices, kept.numel)] if kept.count < kept.numel else []
        return [*presence, encode_bits(np.signbit(kept.values))]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, count, numel = frame.body, frame.count, frame.numel
        need_size(frame, int(self.signs_bytes(count, numel)))
        if count == numel:
            return np.arange(numel, dtype=np.uint32), decode_bits(body, count)
        offset = presence_bytes(numel)
        return decode_presence(body[:offset], count, numel), decode_bits(body[offset:], count)

    def signs_bytes(self, count: int, numel: int) -> float:
        return presence_bytes(count) + (presence_bytes(numel) if count < numel else 0)


@CODECS.register("two_bit")
@dataclass(frozen=True)
class TwoBit(SignCodec):
    """Send 0, plus or minus for every entry of the tensor, 2 bits each, and one magnitude.

        body: float32 or float64 magnitude; two bits per entry of the tensor, the first entry
              lowest: 0 not sent, 1 plus, 2 minus

    Cost: one pass over two bytes per entry of the tensor, for encoding and for decoding.

    Paper: wen2017terngrad.
    """

    paper = "wen2017terngrad"
    number = 11
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        bits = np.zeros(2 * kept.numel, np.uint8)
        bits[2 * kept.indices.astype(np.int64) + np.signbit(kept.values)] = 1
        return [np.packbits(bits, bitorder="little")]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        need_size(frame, int(self.signs_bytes(frame.count, frame.numel)))
        places = np.flatnonzero(unpack(frame.body, 1, 2 * frame.numel).view(np.bool_))
        need(
            places.size == frame.count,
            f"{places.size} entries have signs, and the header has a count of {frame.count}",
        )
        indices = (places >> 1).astype(np.uint32)
        need_ascending(indices, frame.numel)  # else an entry is both plus and minus
        return indices, (places & 1).astype(np.bool_)

    def signs_bytes(self, count: int, numel: int) -> float:
        return -(-numel // 4)
