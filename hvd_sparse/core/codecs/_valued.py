"""Codecs whose body is an encoding of the indices, and then the values in a format of choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...types import Selection
from ._base import Codec
from ._frame import Frame, need, open_frame, selection_from, write_frame
from ._values import check_format, decode_values, encode_values, format_number, value_codes, values_bytes


@dataclass(frozen=True)
class ValuedCodec(Codec):
    """Base of the codecs that keep all indices and take an option for the values.

    Parameters
    ----------
    values : "float32", exact, 4 bytes (8 for float64 gradients); "float16" or "bfloat16", 2 bytes; "int8", 1 byte
    """

    values: str = "float32"

    is_exact_for_signs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_format(self.values, type(self).__name__)

    @property
    def is_exact(self) -> bool:
        return self.values == "float32"

    def encode(self, selection: Selection) -> np.ndarray:
        parts = self.encode_indices(selection)
        return self.write(selection, [*parts, *encode_values(selection.values, self.values)])

    def decode(self, buffer: np.ndarray) -> Selection:
        frame = open_frame(buffer, self, format_number(self.values))
        offset = frame.body.size - values_bytes(frame.count, self.values, frame.value_type.itemsize)
        need(offset >= 0, f"{frame.count} values cannot stand in {frame.body.size} bytes")
        indices = self.decode_indices(frame.body[:offset], frame.count, frame.numel)
        return selection_from(frame, indices, self.read_values(frame, offset))

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return self.index_bytes(count, numel) + values_bytes(count, self.values, value_bytes)

    def write(self, selection: Selection, parts: list[np.ndarray]) -> np.ndarray:
        """A frame of these parts."""
        assert self.number is not None
        numel, count = selection.numel, selection.count
        return write_frame(self.number, selection.values.dtype, numel, count, parts, format_number(self.values))

    def read_values(self, frame: Frame, offset: int) -> np.ndarray:
        """The values that stand in a body from an offset on; its length has been checked."""
        return decode_values(*value_codes(frame, offset, frame.count, self.values), self.values, frame)

    def encode_indices(self, selection: Selection) -> list[np.ndarray]:
        """Arrays to be written one after the other."""
        raise NotImplementedError

    def decode_indices(self, body: np.ndarray, count: int, numel: int) -> np.ndarray:
        """uint32 [count], ascending; CorruptPayload unless they fill the body exactly."""
        raise NotImplementedError

    def index_bytes(self, count: int, numel: int) -> float:
        """As ``body_bytes``, without the values."""
        raise NotImplementedError
