"""What a codec is, and what it declares about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.core.kernels import packing
from hvd_sparse.core.kernels.packing import Packers
from hvd_sparse.core.wire.frame import read_announced, read_frame
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import INDEX_LIMIT, Selection


@dataclass(frozen=True)
class Codec:
    """Selections to bytes and back.  Codecs are frozen dataclasses, registered in ``CODECS``.

    Values are finite: a NaN or Inf that is encoded all the same is refused by every decoder.

    Attributes
    ----------
    paper : citation key, or None
    number : permanent number on the wire; None for a codec that writes the frames of others
    is_exact : ``decode(encode(s)) == s`` bit for bit; else memories keep the rounding
    is_exact_for_signs : exact where all values have one magnitude
    has_fixed_size : the bytes depend on count, numel and the width of the values alone, so
        ``body_bytes`` is exact
    keeps_indices : receivers see the indices that were chosen, and no others
    numel_limit : tensors must have fewer entries
    """

    id: ClassVar[str]
    paper: ClassVar[str | None] = None
    number: ClassVar[int | None]
    is_exact_for_signs: ClassVar[bool] = True
    has_fixed_size: ClassVar[bool] = True
    keeps_indices: ClassVar[bool] = True
    numel_limit: ClassVar[int] = INDEX_LIMIT

    @property
    def is_exact(self) -> bool:
        """Whether selections come back bit for bit."""
        return True

    def complete(self, selection: Selection, accumulated: np.ndarray | None) -> Selection:
        """What is really sent of a selection: more than was chosen, for a codec whose receivers see
        more indices.

        accumulated : the vector that was selected from; without it the additional entries are sent
            as zeros
        """
        return selection

    def encode(self, selection: Selection, kernels: Packers = packing) -> np.ndarray:
        """uint8 [bytes]: a whole frame.

        kernels : the engine's; they decide how fast, never what
        """
        raise NotImplementedError

    def decode(self, buffer: np.ndarray, kernels: Packers = packing) -> Selection:
        """The selection of the one frame that fills the buffer; CorruptPayload otherwise.

        Whatever is accepted encodes back to the same bytes; whatever is allocated is bounded by the
        buffer's length.
        """
        raise NotImplementedError

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        """Bytes behind the frame's header: exact if ``has_fixed_size``, else expected for entries
        at random places.

        value_bytes : of the accumulator's dtype
        """
        raise NotImplementedError

    def entry_bytes(self, numel: int, density: float) -> float:
        """About how many bytes an entry costs in a tensor of this size: from shared quantities
        only."""
        count = max(1, count_from_density(numel, density))
        return self.body_bytes(count, max(1, numel)) / count

    def at_density(self, density: float) -> Any:
        """The same codec where a schedule asks for this density; itself, for those that do not
        depend on it."""
        return self


def decode_for(
    key: str,
    numel: int,
    dtype: Any,
    codec: Codec,
    buffer: np.ndarray,
    kernels: Packers,
) -> Selection:
    """The selection of a frame that is of so many entries of the tensor ``key``; CorruptPayload
    where it is not.

    That is seen before anything is decoded: a frame of few bytes may say that it is of 2**32
    entries, each of which a filter would be asked for.
    """
    announced, announced_dtype = read_announced(buffer)
    if announced != numel or announced_dtype != dtype:
        read_frame(buffer)  # a header that was altered on its way is said to be that
        raise CorruptPayload(
            f"tensor {key!r} has {numel} entries of {np.dtype(dtype)}; a payload for it is for "
            f"{announced} of "
            f"{announced_dtype}"
        )
    return codec.decode(buffer, kernels)
