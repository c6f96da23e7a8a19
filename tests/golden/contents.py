"""Contents of the golden payloads, from their manifest. Hexadecimal values are exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.message import Message, write_error, write_message


def codec_of(entry: dict[str, Any]) -> Any:
    return CODECS.resolve(entry["codec"])


def normal(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a frame or message with every value in Python's spelling."""
    if "frames" in content:
        return {**content, "frames": {p: normal(frame) for p, frame in content["frames"].items()}}
    return {**content, "values": [float.fromhex(value).hex() for value in content["values"]]}


def content_of(selection: Selection) -> dict[str, Any]:
    return {
        "value_type": str(selection.values.dtype),
        "numel": selection.numel,
        "indices": selection.indices.tolist(),
        "values": [value.hex() for value in selection.values.tolist()],
    }


def content_of_message(codec: Any, message: Message) -> dict[str, Any]:
    return {
        "rank": message.rank,
        "step": message.step,
        "configuration": message.configuration,
        "frames": {str(p): content_of(codec.decode(f)) for p, f in message.frames.items()},
        "error": message.error,
    }


def write(entry: dict[str, Any]) -> bytes:
    codec = codec_of(entry)
    if entry["kind"] == "frame":
        return _encode(codec, entry["content"]).tobytes()
    return b"".join(_write_message(codec, content) for content in entry["content"])


def _write_message(codec: Any, content: dict[str, Any]) -> bytes:
    head = content["rank"], content["step"], content["configuration"]
    if content["error"] is not None:
        return write_error(*head, content["error"]).tobytes()
    frames = {int(p): _encode(codec, frame) for p, frame in content["frames"].items()}
    return write_message(*head, frames).tobytes()


def _encode(codec: Any, content: dict[str, Any]) -> np.ndarray:
    indices = np.array(content["indices"], np.uint32)
    values = np.array(list(map(float.fromhex, content["values"])), content["value_type"])
    return codec.encode(Selection(indices, values, content["numel"]))
