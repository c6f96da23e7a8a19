"""Files of compressors' states: one file, the states of any number of ranks.

    bytes     content (little-endian)
    8         b"HVDSPRS" and the version of this layout
    ...       the arrays, one after the other
    ...       JSON: the states, with type, length and place of every array where the array is
    8         length of the JSON
    32        SHA-256 of everything before

A file is written under another name, flushed to the disk and renamed, so that there is a whole one
or none.  Reading one runs no code: numbers, texts and plain arrays are all that it can hold.  The
digest finds what was truncated or altered; it is no signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from hvd_sparse.errors import CorruptCheckpoint

MAGIC = b"HVDSPRS\x01"
DIGEST_BYTES = 32
LENGTH_BYTES = 8
SHORTEST = len(MAGIC) + LENGTH_BYTES + DIGEST_BYTES
CHUNK_BYTES = 1 << 22
DTYPES = ("float32", "float64")


class Writer:
    """Writes a file from front to back, so that no more than one array need be in memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._place = 0
        self._write(MAGIC)

    def _write(self, data: Any) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self._place += len(data)

    def add(self, array: np.ndarray) -> dict[str, Any]:
        """Write an array; what stands for it in the JSON."""
        told = {"dtype": array.dtype.name, "length": array.size, "place": self._place}
        self._write(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        return told

    def finish(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Write the states, in which ``add``'s answers stand for the arrays."""
        text = json.dumps({"states": states}).encode()
        self._write(text)
        self._write(len(text).to_bytes(LENGTH_BYTES, "little"))
        self._stream.write(self._digest.digest())


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A stream whose content is at ``path`` once the block has ended well; otherwise the old
    content still is."""
    target = Path(path)
    handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(path: str | os.PathLike[str], states: Sequence[Mapping[str, Any]]) -> None:
    """Write the states of some or all ranks, as ``state_dict()`` gives them, into one file."""
    with atomic(path) as stream:
        _write_states(stream, states)


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """One state as the content of a file."""
    stream = io.BytesIO()
    _write_states(stream, [state])
    return stream.getvalue()


def _write_states(stream: IO[bytes], states: Sequence[Mapping[str, Any]]) -> None:
    writer = Writer(stream)
    writer.finish(
        [with_arrays(state, lambda array: writer.add(np.asarray(array))) for state in states]
    )


def with_arrays(state: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """A state with something else in the place of every array."""
    tensors = {
        key: {**tensor, "arrays": {name: change(array) for name, array in tensor["arrays"].items()}}
        for key, tensor in state["tensors"].items()
    }
    return {**state, "tensors": tensors}


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The states in a file; their arrays are read-only views of it.

    CorruptCheckpoint if it is not whole, or no such file.
    """
    size = os.path.getsize(path)
    if size < SHORTEST:
        raise CorruptCheckpoint(
            f"{os.fspath(path)!r} has {size} bytes: truncated, or no checkpoint of hvd_sparse"
        )
    return _parse(np.memmap(path, np.uint8, mode="r"), os.fspath(path))


def from_bytes(data: bytes) -> dict[str, Any]:
    """The state that ``to_bytes`` wrote."""
    if len(data) < SHORTEST:
        raise CorruptCheckpoint(
            f"a saved state has {len(data)} bytes: truncated, or none of hvd_sparse"
        )
    return _parse(np.frombuffer(data, np.uint8), "a saved state")[0]


def _parse(content: np.ndarray, name: str) -> list[dict[str, Any]]:
    if content[: len(MAGIC)].tobytes() != MAGIC:
        raise CorruptCheckpoint(f"{name!r} is no checkpoint of hvd_sparse, or of another version")
    digest = hashlib.sha256()
    for start in range(0, content.size - DIGEST_BYTES, CHUNK_BYTES):
        digest.update(
            content[start : min(start + CHUNK_BYTES, content.size - DIGEST_BYTES)].tobytes()
        )
    if digest.digest() != content[-DIGEST_BYTES:].tobytes():
        raise CorruptCheckpoint(
            f"{name!r} is truncated or was altered: its digest is another; use an older one"
        )
    end = content.size - DIGEST_BYTES - LENGTH_BYTES
    length = int.from_bytes(content[end : end + LENGTH_BYTES].tobytes(), "little")
    try:
        states = json.loads(content[end - length : end].tobytes() if length <= end else b"")[
            "states"
        ]
        return [
            with_arrays(state, lambda told: _take(content[: end - length], told))
            for state in states
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{name!r} holds no states of hvd_sparse: {error}") from error


def _take(content: np.ndarray, told: Mapping[str, Any]) -> np.ndarray:
    dtype, length, place = told["dtype"], int(told["length"]), int(told["place"])
    if (
        dtype not in DTYPES
        or length < 0
        or not 0 <= place <= place + length * np.dtype(dtype).itemsize <= content.size
    ):
        raise ValueError(f"an array of {length} {dtype} at {place}")
    return np.frombuffer(content.data, dtype, length, place) if length else np.empty(0, dtype)
