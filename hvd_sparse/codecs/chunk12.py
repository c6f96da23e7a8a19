from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import option
from hvd_sparse.codecs._bits import packed_bytes, unpack
from hvd_sparse.codecs._values import ALL_FORMATS, ValuedCodec, check_format
from hvd_sparse.codecs.block16 import POSITION, joined_blocks
from hvd_sparse.kernels.packing import Packers, blocks_of
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, need_size

CHUNK_BITS = 12


@CODECS.register("chunk12")
@dataclass(frozen=True)
class Chunk12(ValuedCodec):
    """For each chunk of 4,096 entries, send the number of its sent entries, and their 12-bit
    positions in the chunk.

        body: counts of the chunks' sent entries [ceil(numel / 4096)], uint16; the low 8 bits of
              every position [count]; the high 4 bits of every position, two positions a byte, the
              first in the lower bits; values (default: int2)

    With 2-bit values an entry costs 14 bits, as in SparseLoCo. Cost of encoding and of decoding:
    two copies of the positions, one of them packed, and the conversion of the values.

    Paper: sarfi2025sparseloco.  Departs: any number of a chunk's entries may be sent, while the
    paper sends exactly 64. This number takes 2 bytes per chunk: 0.03 bytes per sent entry at
    density 1/64, and half a byte at density 0.001, where ``golomb`` needs fewer bytes.
    """

    values: str = option(check_format, "int2", formats=ALL_FORMATS)

    number = 13
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
