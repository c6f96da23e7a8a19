"""Index and value of every entry, as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...errors import CorruptPayload
from ...registry import CODECS
from ...types import Selection
from ._frame import read_frame, write_frame


@CODECS.register("index_value")
@dataclass(frozen=True)
class IndexValue:
    """Send 32-bit indices, then the values: 8 bytes an entry, 12 for float64.

        body: uint32 indices [count], float32 or float64 values [count], little-endian

    Exact: ``decode(encode(selection))`` is the selection, bit for bit.
    Cost: one copy of the entries and one CRC-32 of them, each way.

    Paper: aji2017sparse.
    """

    paper: ClassVar[str | None] = "aji2017sparse"
    number: ClassVar[int] = 1
    is_exact: ClassVar[bool] = True
    entry_bytes: ClassVar[float] = 8.0

    def encode(self, selection: Selection) -> np.ndarray:
        indices = selection.indices.astype("<u4", copy=False)
        values = selection.values.astype(selection.values.dtype.newbyteorder("<"), copy=False)
        return write_frame(self.number, values.dtype, selection.numel, selection.count, [indices, values])

    def decode(self, buffer: np.ndarray) -> Selection:
        frame = read_frame(buffer)
        if frame.codec != self.number or frame.total_bytes != buffer.size:
            raise CorruptPayload(f"a payload of codec {frame.codec} and {buffer.size} bytes is no index_value payload")
        if frame.body.size != frame.count * (4 + frame.value_type.itemsize) or frame.count > frame.numel:
            raise CorruptPayload(f"{frame.count} entries of {frame.numel} cannot fill {frame.body.size} bytes")
        indices = frame.body[: 4 * frame.count].view("<u4")
        values = frame.body[4 * frame.count :].view(frame.value_type)
        if frame.count and (int(indices[-1]) >= frame.numel or not np.all(indices[1:] > indices[:-1])):
            raise CorruptPayload(f"indices do not ascend, or leave a tensor of {frame.numel} entries")
        native = values.dtype.newbyteorder("=")
        return Selection(indices.astype(np.uint32, copy=False), values.astype(native, copy=False), frame.numel)
