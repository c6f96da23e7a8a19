"""Golomb code of the gaps between indices, for codecs that send ascending indices.

Random indices at densities below 0.1 need at most 1.1 % more bits than their entropy. With gaps
g_i = index_i - index_(i-1) - 1 and a modulus M = 2^b or 3 * 2^b, computed from count and numel:

    planes   the low b bits of all gaps, split into planes of 16, 8, 4, 2 and 1 bits (b in binary),
             the lowest bits in the first plane
    thirds   only for M = 3 * 2^b: a bit an entry, 1 unless (g >> b) % 3 is 0; then, for each such
             entry, a bit that is 1 if it is 2
    unary    for every gap g // M zeros and a one

Each part is padded with zeros to a whole byte; earlier entries occupy lower bits. These are the
bits of a Golomb code, reordered so that array operations can process them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import pack, unpack
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers, modulus_of
from hvd_sparse.wire.frame import need

WIDTHS = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Modulus:
    """The modulus of a Golomb code: 2^shift, or 3 * 2^shift."""

    shift: int
    has_thirds: bool

    @property
    def value(self) -> int:
        return (3 if self.has_thirds else 1) << self.shift

    @property
    def widths(self) -> list[int]:
        """The widths of the planes in bits."""
        return [width for width in WIDTHS if self.shift & width]


def modulus_for(count: int, numel: int) -> Modulus:
    """Return the modulus with the shortest code, 1 for no entries: ``packing.modulus_of``."""
    shift, parts = modulus_of(count, numel) if count else (0, 1)
    return Modulus(shift, parts == 3)


def gaps_bytes(count: int, numel: int) -> float:
    if count == 0:
        return 0.0
    modulus = modulus_for(count, numel)
    miss = 1 - count / numel
    bits = count / (1 - miss**modulus.value)
    if modulus.has_thirds:
        unit = miss ** (1 << modulus.shift)
        bits += count + count * (unit + unit**2) / (1 + unit + unit**2)
    return sum(-(-count * width // 8) for width in modulus.widths) + bits / 8 + 0.5


def encode_gaps(indices: np.ndarray, numel: int, kernels: Packers = reference) -> list[np.ndarray]:
    if indices.size == 0:
        return []
    modulus = modulus_for(indices.size, numel)
    rests, quotients = kernels.split_gaps(indices, modulus.shift, modulus.has_thirds)
    parts, shift = [], 0
    for width in modulus.widths:
        low = rests.astype(np.uint16) if width > 8 else kernels.bytes_from(rests, shift)
        parts.append(pack(low & np.uint8(1) if width == 1 else low, width, kernels))
        shift += width
    if modulus.has_thirds:
        thirds = kernels.bytes_from(rests, shift)
        parts += [pack(bits, 1) for bits in kernels.split_thirds(thirds)]
    return [*parts, kernels.pack_unary(quotients)]


def decode_gaps(
    body: np.ndarray, count: int, numel: int, kernels: Packers = reference
) -> np.ndarray:
    """Decode ascending indices, uint32 [count]; CorruptPayload if they do not fill the body exactly
    or exceed the tensor."""
    if count == 0:
        need(body.size == 0, f"a payload without entries has {body.size} bytes of indices")
        return np.empty(0, np.uint32)
    # Every entry takes at least one bit: check first, to bound the memory by the body's length.
    need(count <= 8 * body.size, f"{count} indices cannot fill {body.size} bytes")
    modulus = modulus_for(count, numel)
    rests, offset = _rests(body, modulus, count, numel, kernels)
    unary = body[offset:]
    most = (count + numel // modulus.value + 7) // 8
    # The quotients add up to at most numel // M.
    need(0 < unary.size <= most, f"{count} indices below {numel} cannot fill {body.size} bytes")
    quotients = kernels.unpack_unary(unary, count)
    if quotients is None or not unary[-1]:
        raise CorruptPayload(f"the number of gaps differs from that of the {count} entries")
    indices = kernels.join_gaps(rests, quotients, modulus.value, numel)
    if indices is None:
        raise CorruptPayload(f"an index exceeds the {numel} entries of the tensor")
    return indices


def _rests(
    body: np.ndarray, modulus: Modulus, count: int, numel: int, kernels: Packers
) -> tuple[np.ndarray, int]:
    """Return the gaps modulo M, uint32 [count], and the number of bytes read from the body."""
    rests = np.zeros(count, np.uint32)
    offset = shift = 0

    def bits(width: int, entries: int) -> np.ndarray:
        nonlocal offset
        start, offset = offset, offset + -(-entries * width // 8)
        need(offset <= body.size, f"{count} indices below {numel} cannot fill {body.size} bytes")
        return unpack(body[start:offset], width, entries, kernels)

    for width in modulus.widths:
        plane = bits(width, count)
        if shift == 0:
            rests[:] = plane
        else:
            kernels.put_bytes(rests, plane, shift)
        shift += width
    if modulus.has_thirds:
        is_more = bits(1, count)
        thirds = kernels.join_thirds(is_more, bits(1, int(np.count_nonzero(is_more))))
        kernels.put_bytes(rests, thirds, shift)
    return rests, offset
