"""Functions of codecs that write and read bitmaps, small integers and gaps between indices."""

from __future__ import annotations

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers, modulus_of, planes_of
from hvd_sparse.wire.frame import need


def unpack(packed: np.ndarray, width: int, count: int, kernels: Packers = reference) -> np.ndarray:
    """Unpack ``count`` numbers of ``width`` bits (1, 2 or 4) from bytes, and return them as uint8.
    Raises CorruptPayload if the padding bits of the last byte are not zero."""
    numbers = kernels.unpack_few(packed, width, count)
    if numbers is None:
        raise CorruptPayload("the padding bits of a payload's last byte are not zero")
    return numbers


def encode_bits(is_set: np.ndarray) -> np.ndarray:
    return np.packbits(is_set, bitorder="little")


def decode_bits(packed: np.ndarray, count: int) -> np.ndarray:
    need(
        packed.size == packed_bytes(count, 1),
        f"{packed.size} bytes cannot hold exactly {count} bits",
    )
    return unpack(packed, 1, count).view(np.bool_)


def packed_bytes(count: int, width: int) -> int:
    return -(-count * width // 8)


def encode_presence(indices: np.ndarray, numel: int) -> np.ndarray:
    """Return a bitmap in which the bits of the given entries are set, uint8 [ceil(numel / 8)].
    Entry 0 of the tensor has the lowest bit of the first byte."""
    is_sent = np.zeros(numel, np.uint8)
    is_sent[indices] = 1
    return encode_bits(is_sent)


def decode_presence(packed: np.ndarray, count: int, numel: int) -> np.ndarray:
    """Return the places of a bitmap's bits that are set, intp [count], ascending."""
    indices = np.flatnonzero(unpack(packed, 1, numel).view(np.bool_))
    need(indices.size == count, f"the bitmap has {indices.size} entries, and the header {count}")
    return indices


def gaps_bytes(count: int, numel: int) -> float:
    """Return the number of bytes that ``encode_gaps`` is expected to write for ``count`` random
    indices below ``numel``."""
    if count == 0:
        return 0.0
    shift, parts = modulus_of(count, numel)
    miss = 1 - count / numel
    bits = count / (1 - miss ** (parts << shift))
    if parts == 3:
        unit = miss ** (1 << shift)
        bits += count + count * (unit + unit**2) / (1 + unit + unit**2)
    return sum(packed_bytes(count, width) for width in planes_of(shift)) + bits / 8 + 0.5


def encode_gaps(indices: np.ndarray, numel: int, kernels: Packers = reference) -> np.ndarray:
    return kernels.pack_gaps(indices, numel) if indices.size else np.empty(0, np.uint8)


def decode_gaps(
    body: np.ndarray, count: int, numel: int, kernels: Packers = reference
) -> np.ndarray:
    """Return the indices that ``encode_gaps`` encoded in ``body``, uint32 [count], ascending.
    Raises CorruptPayload unless their code fills ``body``, and all indices are below ``numel``."""
    if count == 0:
        need(body.size == 0, f"a payload without entries has {body.size} bytes of indices")
        return np.empty(0, np.uint32)
    # An entry has at least one bit. The check prevents large allocations for forged counts.
    indices = kernels.unpack_gaps(body, count, numel) if count <= 8 * body.size else None
    if indices is None:
        raise CorruptPayload(
            f"{body.size} bytes do not encode {count} ascending indices below {numel}"
        )
    return indices
