from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import option
from hvd_sparse.codecs._values import ALL_FORMATS, ValuedCodec, check_format
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels.packing import BLOCK, BLOCK_BITS, Packers, blocks_of
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need

POSITION, WIDE_COUNT = np.dtype("<u2"), np.dtype("<u4")


@CODECS.register("block16")
@dataclass(frozen=True)
class Block16(ValuedCodec):
    """For each block of 65,536 entries, send the number of its sent entries, and their 16-bit
    positions in the block.

        body: counts of the blocks' sent entries [ceil(numel / 65536)], uint16, or uint32 if all
              entries of some block are sent; uint16 positions [count]; values (default: bfloat16)

    With 16-bit values a sent entry costs 4 bytes. The counts add 2 bytes per block: a third of a
    byte per sent entry at density 1e-4, less at higher densities. Cost of encoding and of decoding:
    a copy of the positions, a conversion of the values, and half the CRC-32 of ``index_value``.
    """

    values: str = option(check_format, "bfloat16", formats=ALL_FORMATS)

    number = 2
    has_fixed_size = False
    needs_host = ""

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        counts = kernels.count_blocks(selection.indices, selection.numel)
        width = POSITION if selection.count < BLOCK or counts.max() < BLOCK else WIDE_COUNT
        return [counts.astype(width), selection.indices.astype(POSITION)]

    def decode_indices(self, frame: Frame, kernels: Packers) -> np.ndarray:
        body, count, numel = frame.body, frame.count, frame.numel
        blocks, counts_bytes = blocks_of(numel), body.size - 2 * count
        width = 4 if blocks and counts_bytes == 4 * blocks else 2
        need(
            counts_bytes == width * blocks,
            f"{body.size} bytes cannot hold exactly {count} indices below {numel}",
        )
        counts = body[:counts_bytes].view(f"<u{width}")
        need(
            width == 2 or int(counts.max()) == BLOCK,
            "the counts of the blocks have 32 bits though no block is full",
        )
        need(int(counts.sum()) == count, f"the counts of the blocks do not add up to {count}")
        return joined_blocks(counts, body[counts_bytes:].view(POSITION), numel, kernels)

    def index_bytes(self, count: int, numel: int) -> float:
        width = 4 if numel >= BLOCK and count == numel else 2
        return width * blocks_of(numel) + 2 * count


def joined_blocks(
    counts: np.ndarray, positions: np.ndarray, numel: int, kernels: Packers, bits: int = BLOCK_BITS
) -> np.ndarray:
    """Return the indices of entries, uint32. ``counts`` has the number of these entries in each
    block of 2^bits entries, and ``positions`` has their positions within the blocks. Raises
    CorruptPayload unless the indices ascend and are below ``numel``."""
    indices = kernels.join_blocks(counts, positions, bits)
    if indices is None:
        raise CorruptPayload("the positions in a block do not ascend")
    need(
        indices.size == 0 or int(indices[-1]) < numel,
        f"an index exceeds the {numel} entries of the tensor",
    )
    return indices
