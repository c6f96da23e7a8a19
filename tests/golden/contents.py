"""Contents of the golden payloads, from their manifest. Hexadecimal values are exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.message import write_error, write_message


def codec_of(entry: dict[str, Any]) -> Any:
    return CODECS.resolve(entry["codec"])


def selection_of(content: dict[str, Any]) -> Selection:
    indices = np.array(content["indices"], np.uint32)
    values = np.array(list(map(float.fromhex, content["values"])), content["value_type"])
    return Selection(indices, values, content["numel"])


def check_frame(codec: Any, frame: np.ndarray, content: dict[str, Any]) -> None:
    found, meant = codec.decode(frame), selection_of(content)
    assert (found.numel, found.values.dtype) == (meant.numel, meant.values.dtype)
    assert found.indices.tolist() == meant.indices.tolist()
    assert found.values.tobytes() == meant.values.tobytes()


def write(entry: dict[str, Any]) -> bytes:
    codec = codec_of(entry)
    if entry["kind"] == "frame":
        return codec.encode(selection_of(entry["content"])).tobytes()
    return b"".join(_write_message(codec, content) for content in entry["content"])


def _write_message(codec: Any, content: dict[str, Any]) -> bytes:
    head = content["rank"], content["step"], content["configuration"]
    if content["error"] is not None:
        return write_error(*head, content["error"]).tobytes()
    frames = {int(p): codec.encode(selection_of(frame)) for p, frame in content["frames"].items()}
    return write_message(*head, frames).tobytes()
