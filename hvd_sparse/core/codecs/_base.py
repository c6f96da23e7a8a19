"""What a codec is."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from ...types import Selection


class Codec(Protocol):
    """Selections to bytes and back.  Implementations are frozen dataclasses, registered in ``CODECS``.

    number : permanent number on the wire          entry_bytes : about how many bytes an entry costs
    is_exact : ``decode(encode(s)) == s`` bit for bit; else memories keep the rounding
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]
    number: ClassVar[int]
    is_exact: ClassVar[bool]
    entry_bytes: ClassVar[float]

    def encode(self, selection: Selection) -> np.ndarray:
        """uint8 [bytes]: a whole frame."""

    def decode(self, buffer: np.ndarray) -> Selection:
        """The selection of the one frame that fills the buffer; CorruptPayload otherwise."""
