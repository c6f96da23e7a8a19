"""Kernels of the codecs: they convert values and indices to short codes, and back.

The rules of ``kernels.contract`` apply. All vectors are 1-D and C-contiguous. A decoder that gets
bytes which no encoder writes, for example corrupt ones, returns None.

Golomb code of the gaps between ascending indices.  With gaps g_i = index_i - index_(i-1) - 1 and a
modulus M = 2^b or 3 * 2^b, which is computed from count and numel:

    planes   the low b bits of g modulo M, for all gaps. The b bits are split into planes, whose
             widths are those of 16, 8, 4, 2 and 1 bits that add up to b; the first plane has the
             lowest bits
    thirds   only if M = 3 * 2^b. With t = (g >> b) % 3: one bit for each gap, 1 if t > 0; then one
             bit for each gap with t > 0, 1 if t = 2
    unary    for each gap, g // M zeros and then a one

Each part is padded with zeros to a whole byte; earlier entries occupy lower bits. These are the
bits of a Golomb code, reordered so that array operations can process them.
"""

from __future__ import annotations

import numpy as np

BLOCK_BITS = 16
BLOCK = 1 << BLOCK_BITS
"""Default number of entries in a block of ``count_blocks`` and ``join_blocks``."""

WIDTHS = (16, 8, 4, 2, 1)
"""Possible widths of a plane in bits. A code has the planes whose widths add up to the b of its
modulus (see above)."""

LARGEST_FLOAT = float(np.finfo(np.float32).max)
BRAIN_EXPONENT = np.uint16(0x7F80)
"""Exponent bits of bfloat16. A value with all of them set is Inf or NaN."""

SIGN = np.uint16(0x8000)


def blocks_of(numel: int, bits: int = BLOCK_BITS) -> int:
    return -(-numel >> bits)


def _starts(blocks: int, bits: int) -> np.ndarray:
    starts = np.arange(blocks, dtype=np.uint32)
    starts <<= np.uint32(bits)
    return starts


def as_float32(values: np.ndarray) -> np.ndarray:
    """Return the values as float32. Values that are too large for float32 are clipped."""
    if values.dtype == np.float32:
        return np.ascontiguousarray(values)
    return np.clip(values, -LARGEST_FLOAT, LARGEST_FLOAT).astype(np.float32)


_HALF = 31
_ONE = 1 << 2 * _HALF
"""The number 1 in fixed point, which is used because floats may differ between machines."""
_ONE_BEATS_TWO, _TWO_BEATS_THREE, _THREE_BEATS_FOUR = (
    n * _ONE // 10**6 for n in (618_034, 754_878, 819_173)
)


def modulus_of(count: int, numel: int) -> tuple[int, int]:
    """Return two numbers of a Golomb code's modulus M = ``parts << shift``: ``shift``, and
    ``parts`` (1 or 3). M gives the shortest code for ``count`` > 0 random indices below ``numel`` <
    2^32.

    For a power of two u, let y = (1 - count / numel)^u. Of two moduli, the one with the shorter
    code is

        u   rather than 2u   if y < 0.618034
        2u  rather than 3u   if y < 0.754878
        3u  rather than 4u   if y < 0.819173

    All machines get the same modulus, because it is computed with integers below 2^63.
    """
    high, rest = divmod((numel - count) << _HALF, numel)
    chance, shift = (high << _HALF) + (rest << _HALF) // numel, 0
    if chance < _ONE_BEATS_TWO:
        return 0, 1
    while chance >= _THREE_BEATS_FOUR:  # doubling u squares y
        high, low = chance >> _HALF, chance & ((1 << _HALF) - 1)
        chance = high * high + ((2 * high * low + (low * low >> _HALF)) >> _HALF)
        shift += 1
    return (shift + 1, 1) if chance < _TWO_BEATS_THREE else (shift, 3)


def planes_of(shift: int) -> list[int]:
    """Return the widths, in bits, of the planes (see the module) that hold the low ``shift`` bits
    of the gaps' remainders."""
    return [width for width in WIDTHS if shift & width]


class Packers:
    """The codecs' kernels, written in numpy."""

    def count_blocks(self, indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
        """Return the number of indices in each block of 2^bits entries (bits <= 16), as int64."""
        counts = np.full(blocks_of(numel, bits), indices.size)
        starts = np.searchsorted(indices, _starts(counts.size, bits))
        counts[:-1] = starts[1:]
        counts -= starts
        return counts

    def join_blocks(
        self, counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
    ) -> np.ndarray | None:
        """Return indices, uint32 [count], computed from the number of indices in each block, uint16
        or uint32, and from their positions in the blocks, uint16 [count]. Return None unless the
        indices ascend."""
        indices = np.repeat(_starts(counts.size, bits), counts)
        indices += positions
        return indices if bool(np.all(indices[1:] > indices[:-1])) else None

    def brain_codes(self, values: np.ndarray) -> np.ndarray:
        """Return the values as bfloat16 bit patterns, uint16 [count], rounded half away from zero
        and clipped to the largest finite number. Magnitudes that round to less than 2^-126 become
        zero."""
        rounded = as_float32(values).view(np.uint32) + np.uint32(0x8000)
        codes: np.ndarray = (rounded >> np.uint32(16)).astype(np.uint16)
        # Rounding may have carried to infinity: subtract one to get the largest number.
        exponents = codes & BRAIN_EXPONENT
        codes[exponents == BRAIN_EXPONENT] -= np.uint16(1)
        # Subnormal values become zero on all ranks, because some threads flush them to zero anyway.
        codes[exponents == 0] &= SIGN
        return codes

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the values of bfloat16 bit patterns as float32 [count]; None if any is NaN, Inf or
        subnormal."""
        exponents = codes & BRAIN_EXPONENT
        if exponents.max(initial=0) == BRAIN_EXPONENT or (codes[exponents == 0] & ~SIGN).any():
            return None
        bits = codes.astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)

    def pack_few(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """Pack the low ``width`` bits (1, 2 or 4) of each uint8 number. Return the packed bytes,
        uint8. A byte holds its first number in its lowest bits, and the last byte is padded with
        zeros."""
        if width == 1:
            return np.packbits(numbers & np.uint8(1), bitorder="little")
        per_byte = 8 // width
        # Process every per_byte-th number at a time, because packbits only packs single bits.
        padded = np.zeros(-(-numbers.size // per_byte) * per_byte, np.uint8)
        padded[: numbers.size] = numbers
        padded &= np.uint8((1 << width) - 1)
        packed = padded[::per_byte].copy()
        for place in range(1, per_byte):
            packed |= padded[place::per_byte] << np.uint8(width * place)
        return packed

    def unpack_few(self, packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
        """Return the ``count`` numbers of ``width`` bits that ``pack_few`` packed, as uint8; None
        if the padding is not zero."""
        if width == 1:
            numbers = np.unpackbits(packed, bitorder="little")
        else:
            per_byte = 8 // width
            numbers = np.empty(packed.size * per_byte, np.uint8)
            for place in range(per_byte):
                np.right_shift(packed, width * place, out=numbers[place::per_byte])
            numbers &= np.uint8((1 << width) - 1)
        return None if numbers[count:].any() else numbers[:count]

    def pack_gaps(self, indices: np.ndarray, numel: int) -> np.ndarray:
        """Return the Golomb code (see the module), uint8, of one or more ascending indices."""
        shift, parts = modulus_of(indices.size, numel)
        # The first gap starts at index -1, which is 2^32 - 1 as uint32.
        gaps = np.diff(indices, prepend=np.uint32(0xFFFFFFFF)) - np.uint32(1)
        quotients = gaps // np.uint32(parts << shift)
        rests, pieces, done = gaps - quotients * np.uint32(parts << shift), [], 0
        for width in planes_of(shift):
            plane = rests >> np.uint32(done)
            if width > 4:
                pieces.append(plane.astype(f"<u{width // 8}").view(np.uint8))
            else:
                pieces.append(self.pack_few(plane.astype(np.uint8), width))
            done += width
        if parts == 3:
            thirds = (rests >> np.uint32(shift)).astype(np.uint8)
            pieces.append(self.pack_few((thirds != 0).view(np.uint8), 1))
            pieces.append(self.pack_few(thirds[thirds != 0] >> np.uint8(1), 1))
        # The 1 bit of gap i follows the 1 bits of the gaps before, and as many 0 bits as the
        # quotients of the gaps 0 to i add up to.
        ones = np.cumsum(quotients, dtype=np.int64)
        ones += np.arange(ones.size)
        unary = np.zeros(int(ones[-1]) + 1, np.uint8)
        unary[ones] = 1
        return np.concatenate([*pieces, self.pack_few(unary, 1)])

    def unpack_gaps(self, body: np.ndarray, count: int, numel: int) -> np.ndarray | None:
        """Return the indices that ``pack_gaps`` encoded in ``body``, uint32 [count], for ``count``
        > 0. Return None if the code does not fill the body exactly, padding is not zero, or an
        index is ``numel`` or more."""
        shift, parts = modulus_of(count, numel)
        modulus, rests, at, done = parts << shift, np.zeros(count, np.uint32), 0, 0

        def plane(width: int, entries: int) -> np.ndarray | None:
            nonlocal at
            start, at = at, at + -(-entries * width // 8)
            if at > body.size:
                return None
            if width > 4:
                return body[start:at].view(f"<u{width // 8}")
            return self.unpack_few(body[start:at], width, entries)

        for width in planes_of(shift):
            numbers = plane(width, count)
            if numbers is None:
                return None
            rests |= numbers.astype(np.uint32) << np.uint32(done)
            done += width
        if parts == 3:
            is_more = plane(1, count)
            is_two = None if is_more is None else plane(1, int(np.count_nonzero(is_more)))
            if is_more is None or is_two is None:
                return None
            rests[is_more != 0] += (is_two.astype(np.uint32) + np.uint32(1)) << np.uint32(shift)
        unary = body[at:]
        # The quotients of valid codes add up to at most numel // modulus. Check the length of the
        # unary part first, so that corrupt bytes cannot cause a huge allocation below.
        if not 0 < unary.size <= (count + numel // modulus + 7) // 8 or not unary[-1]:
            return None
        ones = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
        if ones.size != count:
            return None
        # The number of zeros between two ones is a quotient. The sums fit int64.
        indices = np.cumsum((np.diff(ones, prepend=-1) - 1) * modulus + rests + 1) - 1
        return indices.astype(np.uint32) if int(indices[-1]) < numel else None
