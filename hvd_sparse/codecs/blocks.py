"""Codecs of short positions inside blocks, and short values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import unpack
from hvd_sparse.codecs._values import ALL_FORMATS, ValuedCodec, packed_bytes
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels.packing import BLOCK, BLOCK_BITS, Packers, blocks_of
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, need_size

POSITION, WIDE_COUNT = np.dtype("<u2"), np.dtype("<u4")
CHUNK_BITS = 12


@CODECS.register("block16")
@dataclass(frozen=True)
class Block16(ValuedCodec):
    """Send 16-bit positions inside blocks of 65,536 entries, and the count of every block.

        body: counts of the blocks [ceil(numel / 65536)], uint16, or uint32 if some block is full;
              uint16 positions [count]; values

    An entry costs 4 bytes with 16-bit values. The counts add 2 bytes per block: a third of a byte
    per entry at density 1e-4, and negligible at higher densities. Cost: a copy of the positions and
    a conversion of the values, for encoding and for decoding; CRC-32 over half of the bytes of
    ``index_value``.
    """

    values: str = "bfloat16"

    number = 2
    has_fixed_size = False
    formats = ALL_FORMATS
    needs_host = ""

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        counts = kernels.count_blocks(selection.indices, selection.numel)
        width = POSITION if selection.count < BLOCK or counts.max() < BLOCK else WIDE_COUNT
        return [counts.astype(width), selection.indices.astype(POSITION)]

    def decode_indices(self, frame: Frame, kernels: Packers) -> np.ndarray:
        counts, positions = _split(frame.body, frame.count, frame.numel)
        need(
            int(counts.sum()) == frame.count,
            f"the counts of the blocks do not add up to {frame.count}",
        )
        return joined_blocks(counts, positions, frame.numel, kernels)

    def index_bytes(self, count: int, numel: int) -> float:
        width = 4 if numel >= BLOCK and count == numel else 2
        return width * blocks_of(numel) + 2 * count


def joined_blocks(
    counts: np.ndarray,
    positions: np.ndarray,
    numel: int,
    kernels: Packers,
    bits: int = BLOCK_BITS,
) -> np.ndarray:
    """Return the indices of counts and positions in blocks of 2^bits entries, uint32 ascending;
    CorruptPayload unless they ascend and are below ``numel``."""
    indices = kernels.join_blocks(counts, positions, bits)
    if indices is None:
        raise CorruptPayload("the positions in a block do not ascend")
    need(
        indices.size == 0 or int(indices[-1]) < numel,
        f"an index exceeds the {numel} entries of the tensor",
    )
    return indices


def _split(body: np.ndarray, count: int, numel: int) -> tuple[np.ndarray, np.ndarray]:
    blocks, counts_bytes = blocks_of(numel), body.size - 2 * count
    width = 4 if blocks and counts_bytes == 4 * blocks else 2
    need(
        counts_bytes == width * blocks,
        f"{count} indices below {numel} cannot fill {body.size} bytes",
    )
    counts = body[:counts_bytes].view(f"<u{width}")
    need(
        width == 2 or int(counts.max()) == BLOCK,
        "the counts of the blocks have 32 bits though no block is full",
    )
    return counts, body[counts_bytes:].view("<u2")


@CODECS.register("chunk12")
@dataclass(frozen=True)
class Chunk12(ValuedCodec):
    """Send 12-bit positions inside chunks of 4,096 entries, and the count of every chunk.

        body: counts of the chunks [ceil(numel / 4096)], uint16; the low 8 bits of every index
              [count]; the next 4 bits, two entries a byte, the first lower; values

    An entry costs 14 bits with 2-bit values, as in SparseLoCo. Cost: two copies of the positions,
    one of them packed, and the codes of the values, for encoding and for decoding.

    Paper: sarfi2025sparseloco.  Departs: the paper sends exactly 64 entries of every chunk. Here a
    chunk may have any number, and the counts add 2 bytes a chunk: 0.03 bytes an entry at density
    1/64, half a byte at 0.001, where ``golomb`` with the same values needs fewer bytes.
    """

    values: str = "int2"

    paper = "sarfi2025sparseloco"
    number = 13
    formats = ALL_FORMATS
    needs_host = ""

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        counts = kernels.count_blocks(selection.indices, selection.numel, CHUNK_BITS)
        positions = selection.indices.astype(np.uint16)
        high = (positions >> np.uint16(8)).astype(np.uint8)
        return [counts.astype(POSITION), positions.astype(np.uint8), kernels.pack_few(high, 4)]

    def decode_indices(self, frame: Frame, kernels: Packers) -> np.ndarray:
        body, count, numel = frame.body, frame.count, frame.numel
        chunks = blocks_of(numel, CHUNK_BITS)
        need_size(frame, int(self.index_bytes(count, numel)))
        counts = body[: 2 * chunks].view(POSITION)
        need(int(counts.sum()) == count, f"the counts of the chunks do not add up to {count}")
        low = body[2 * chunks : 2 * chunks + count]
        positions = unpack(body[2 * chunks + count :], 4, count, kernels).astype(np.uint16)
        positions <<= np.uint16(8)
        positions |= low
        return joined_blocks(counts, positions, numel, kernels, CHUNK_BITS)

    def index_bytes(self, count: int, numel: int) -> float:
        return 2 * blocks_of(numel, CHUNK_BITS) + count + packed_bytes(count, 4)
