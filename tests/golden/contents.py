"""Contents of the golden payloads, from their manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden import decoder

from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.message import write_error, write_message

LETTERS = {"float32": "f", "float64": "d"}


def codec_of(entry: dict[str, Any]) -> Any:
    return CODECS.resolve(entry["codec"])


def selection_of(content: dict[str, Any]) -> Selection:
    """Return the selection of a payload, whose values are in hexadecimal, which is exact."""
    values = [float.fromhex(value) for value in content["values"]]
    return Selection(
        np.array(content["indices"], np.uint32),
        np.array(values, content["value_type"]),
        content["numel"],
    )


def frame_of(content: dict[str, Any]) -> decoder.Frame:
    values = tuple(float.fromhex(value) for value in content["values"])
    return decoder.Frame(
        LETTERS[content["value_type"]], content["numel"], tuple(content["indices"]), values
    )


def message_of(content: dict[str, Any]) -> decoder.Message:
    frames = {int(position): frame_of(frame) for position, frame in content["frames"].items()}
    return decoder.Message(
        content["rank"], content["step"], content["configuration"], frames, content["error"]
    )


def write(entry: dict[str, Any]) -> bytes:
    codec = codec_of(entry)
    if entry["kind"] == "frame":
        return codec.encode(selection_of(entry["content"])).tobytes()
    return b"".join(_write_message(codec, content) for content in entry["content"])


def _write_message(codec: Any, content: dict[str, Any]) -> bytes:
    head = content["rank"], content["step"], content["configuration"]
    if content["error"] is not None:
        return write_error(*head, content["error"]).tobytes()
    frames = {
        int(position): codec.encode(selection_of(frame))
        for position, frame in content["frames"].items()
    }
    return write_message(*head, frames).tobytes()
