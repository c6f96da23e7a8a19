from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_density, count_from_density, option
from hvd_sparse.codecs._values import ValuedCodec, check_format
from hvd_sparse.codecs.bitmap import Bitmap
from hvd_sparse.codecs.block16 import Block16
from hvd_sparse.codecs.dense import Dense
from hvd_sparse.codecs.golomb import Golomb
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import read_frame

CANDIDATES: tuple[type[ValuedCodec], ...] = (Dense, Bitmap, Block16, Golomb)
"""Codecs from which ``Auto`` chooses, the fastest first."""

NEAR = 1.01
"""``Auto`` chooses the fastest codec whose bytes are at most this factor times the fewest bytes."""


@CODECS.register("auto")
@dataclass(frozen=True)
class Auto(ValuedCodec):
    """Use the codec that is expected to send the fewest bytes at the method's density.

    The codec is mostly ``golomb`` below a density of about one third, ``bitmap`` above that, and
    ``dense`` near 1. Of the codecs within 1 % of the fewest bytes, the fastest is used.

    Parameters
    ----------
    values : "bfloat16" or "float16", 2 bytes; "int8", 1 byte; "float32", exact, 4 bytes (8 for
        float64 gradients)
    density : density for which the codec is chosen, in (0, 1]. None takes the schedule's density;
        if the method has no density, ``golomb`` is used

    Notes
    -----
    The choice depends only on the density and on the tensor's size and dtype, so that all ranks
    choose the same codec. Decoding refuses frames of another codec. Cost: that of the chosen codec.
    """

    values: str = option(check_format, "bfloat16")
    density: float | None = option(check_density, None)

    number = None
    has_fixed_size = False
    needs_host = ""

    def at_density(self, density: float) -> Auto:
        return self if self.density is not None else dataclasses.replace(self, density=density)

    def chosen(self, numel: int, value_bytes: int = 4) -> ValuedCodec:
        """Return the codec for a tensor of ``numel`` entries. ``value_bytes`` is the item size of
        the tensor's values: 4 or 8 bytes."""
        return _chosen(self.values, self.density, numel, value_bytes)

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        return self.chosen(selection.numel, selection.values.dtype.itemsize).encode(
            selection, kernels
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        # Choose again, because the codec number in the frame may be wrong.
        frame = read_frame(buffer, has_checksum=False)
        return self.chosen(frame.numel, frame.value_type.itemsize).decode(buffer, kernels)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return self.chosen(numel, value_bytes).body_bytes(count, numel, value_bytes)

    def entry_bytes(self, numel: int, density: float, value_bytes: int = 4) -> float:
        chosen = self.at_density(density).chosen(numel, value_bytes)
        return chosen.entry_bytes(numel, density, value_bytes)


@functools.lru_cache(maxsize=4096)
def _chosen(values: str, density: float | None, numel: int, value_bytes: int) -> ValuedCodec:
    codecs = [candidate(values) for candidate in CANDIDATES]
    if density is None or numel == 0:
        return codecs[-1]
    count = count_from_density(numel, density)
    sizes = [codec.body_bytes(count, numel, value_bytes) for codec in codecs]
    return next(codec for codec, size in zip(codecs, sizes) if size <= NEAR * min(sizes))
