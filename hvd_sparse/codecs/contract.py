"""The contract of codecs, which encode selections as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection


@dataclass(frozen=True)
class Codec:
    """Base class of codecs: frozen dataclasses, registered in ``CODECS``.

    A codec encodes finite values only; decoders refuse NaN and Inf.

    Attributes
    ----------
    number : number that identifies the codec in frames, and never changes; None for a codec that
        lets another codec write the frames. 12 is reserved for a removed codec
    is_exact : decoded values equal the encoded ones bit for bit; if not, memories keep the rounding
        errors
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
