"""Checkpoint files: one file holds the states of any number of ranks.

    bytes     content (little-endian)
    8         b"HVDSPRS" and the version of this layout
    any       the arrays, one after the other
    any       JSON: the states; each array is replaced by its dtype, length and place in the file
    8         length of the JSON
    32        SHA-256 of all bytes before it

A file is written under a temporary name, flushed to the disk and renamed. Reading a file never runs
code from it. The digest detects damage, but it does not prove who wrote the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import glob
import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.errors import CorruptCheckpoint, PeerFailure
from hvd_sparse.types import Report, State

MAGIC = b"HVDSPRS\x01"
DIGEST_BYTES = 32
LENGTH_BYTES = 8
SHORTEST = len(MAGIC) + LENGTH_BYTES + DIGEST_BYTES
GATHERED_BYTES = 1 << 26
"""Largest number of bytes that a rank receives at once, from all ranks together. On slow networks,
longer messages would take longer than the time limit of a collective."""
DTYPES = ("float32", "float64")
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""Exceptions that parsing a file raises if its content is malformed."""
PARTIAL, RANDOM_LETTERS = ".partial", 8
"""Suffix of a temporary file, and the number of random letters before it."""

Parts = Iterator["tuple[str, str, dict[int, np.ndarray]]"]
"""Yields a tensor's name, the name of one of its arrays, and these arrays by rank."""


class Writer:
    """Writes a checkpoint array by array, so that only one array needs to be in memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._write(MAGIC)

    def _write(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self._digest.update(data)

    def add(self, array: np.ndarray) -> dict[str, object]:
        """Write an array. Return a description of its dtype, length and place in the file, which
        replaces the array in the state."""
        array = np.ascontiguousarray(array)
        told = {"dtype": array.dtype.name, "length": array.size, "place": self._stream.tell()}
        self._write(array.view(np.uint8).data if array.size else b"")
        return told

    def finish(self, states: Sequence[State]) -> None:
        """Write the states, with the results of ``add`` in place of arrays, then the digest."""
        text = json.dumps({"states": states}).encode()
        self._write(text)
        self._write(len(text).to_bytes(LENGTH_BYTES, "little"))
        self._stream.write(self._digest.digest())


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a stream to a temporary file. If the ``with`` block raises no error, the file replaces
    ``path``; if ``path`` is a symbolic link, the file replaces the link's target."""
    target = Path(path).resolve()
    _sweep(target)
    handle, partial = _create(target)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            # Rename under the lock: other writers remove unlocked temporary files as leftovers.
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


def _create(target: Path) -> tuple[int, str]:
    """Create a temporary file beside the target, and lock it until it is closed. If the target
    exists, the file gets the target's permissions. Return the file's handle and path."""
    while True:
        letters = secrets.token_hex(RANDOM_LETTERS // 2)
        partial = f"{target.parent}/.{target.name}.{letters}{PARTIAL}"
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # without a target, or without modes in the file system
            os.fchmod(handle, os.stat(target).st_mode & 0o777)
        # Without locks in the file system, ``_sweep`` cannot lock the file either, and keeps it.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, partial
        os.close(handle)  # another writer removed it before it was locked


def _sweep(target: Path) -> None:
    pattern = f".{glob.escape(target.name)}.{'?' * RANDOM_LETTERS}{PARTIAL}"
    for name in fnmatch.filter(os.listdir(target.parent), pattern):
        partial = target.parent / name
        # An error means that the file's writer still runs, or another writer has just removed it.
        with contextlib.suppress(OSError):
            handle = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(partial)
            finally:
                os.close(handle)


def to_bytes(*states: State) -> bytes:
    stream = io.BytesIO()
    writer = Writer(stream)
    writer.finish([with_arrays(state, writer.add) for state in states])
    return stream.getvalue()


def with_arrays(state: State, change: Callable[..., object]) -> Report:
    """Return a copy of a state in which ``change(array)`` replaces every array."""
    tensors = {
        key: {**tensor, "arrays": {name: change(array) for name, array in tensor["arrays"].items()}}
        for key, tensor in state["tensors"].items()
    }
    return {**state, "tensors": tensors}


def read(path: str | os.PathLike[str]) -> list[Report]:
    """Return the states in a file, with read-only arrays. Raises CorruptCheckpoint if the file is
    not a valid checkpoint, and OSError if it cannot be read."""
    is_empty = not os.path.getsize(path)  # an empty file cannot be mapped
    content = np.empty(0, np.uint8) if is_empty else np.memmap(path, np.uint8, mode="r")
    return _parse(content, os.fspath(path))


def from_bytes(data: bytes) -> Report:
    """Return the state that ``to_bytes`` has converted to ``data``. Raises CorruptCheckpoint if
    ``data`` is incomplete or was altered."""
    return _parse(np.frombuffer(data, np.uint8), "a saved state")[0]


def _parse(content: np.ndarray, name: str) -> list[Report]:
    if content.size < SHORTEST:
        raise CorruptCheckpoint(
            f"{name!r} has {content.size} bytes: it is truncated, or not a checkpoint of "
            "hvd_sparse; use another file"
        )
    if content[: len(MAGIC)].tobytes() != MAGIC:
        raise CorruptCheckpoint(
            f"{name!r} is not a checkpoint of hvd_sparse, or has another version of its format; "
            "use another file, or the hvd_sparse that wrote it"
        )
    digest = hashlib.sha256(content.data[:-DIGEST_BYTES]).digest()
    if digest != content[-DIGEST_BYTES:].tobytes():
        raise CorruptCheckpoint(
            f"{name!r} is truncated or was altered: its digest does not match; use an older file"
        )
    end = content.size - DIGEST_BYTES - LENGTH_BYTES
    length = int.from_bytes(content[end : end + LENGTH_BYTES].tobytes(), "little")
    try:
        text = content[end - length : end].tobytes() if length <= end else b""
        arrays = content[: end - length]
        return [
            with_arrays(state, lambda told: _take(arrays, told))
            for state in json.loads(text)["states"]
        ]
    except MALFORMED as error:
        raise CorruptCheckpoint(
            f"{name!r} has no valid states of hvd_sparse ({error}): use an older file"
        ) from error


def _take(content: np.ndarray, told: State) -> np.ndarray:
    dtype, length, place = told["dtype"], int(told["length"]), int(told["place"])
    if (
        dtype not in DTYPES
        or length < 0
        or not 0 <= place <= place + length * np.dtype(dtype).itemsize <= content.size
    ):
        raise ValueError(f"it lists an array of {length} {dtype} values at byte {place}")
    return np.frombuffer(content.data, dtype, length, place) if length else np.empty(0, dtype)


def gather_parts(gatherer: Gatherer, mine: State, told: Sequence[State]) -> Parts:
    """Gather all ranks' arrays on rank 0, one array of one tensor at a time. Yield the tensor's
    name, the array's name, and on rank 0 the ranks' arrays, by rank; on other ranks an empty dict.
    Every rank must iterate to the end, because each iteration is collective. Long arrays are
    gathered in slices; a rank without the array sends empty slices.

    mine : this rank's state
    told : the states of all ranks, with [dtype, length] in place of each array
    """
    collective = gatherer.collective
    share = GATHERED_BYTES // collective.world_size
    for key in mine["model"]:
        sizes = {
            rank: state["tensors"][key]["arrays"]
            for rank, state in enumerate(told)
            if key in state["tensors"]
        }
        for name in sorted({name for arrays in sizes.values() for name in arrays}):
            array = np.empty(0, np.uint8)
            if key in mine["tensors"]:
                array = np.ascontiguousarray(mine["tensors"][key]["arrays"][name])
            data = array.view(np.uint8)
            described = {rank: arrays[name] for rank, arrays in sizes.items()}
            longest = max(length * np.dtype(dtype).itemsize for dtype, length in described.values())
            found = {}
            if collective.rank == 0:
                found = {rank: np.empty(size, dtype) for rank, (dtype, size) in described.items()}
            for start in range(0, longest, share):
                gathered, place = gatherer.gather(data[start : start + share]), 0
                for whole in found.values():
                    part = whole.view(np.uint8)[start : start + share]
                    part[:] = gathered[place : place + part.size]
                    place += part.size
            yield key, name, found


def gather_into_file(state: State, path: str | os.PathLike[str], gatherer: Gatherer) -> None:
    """Gather all ranks' states on rank 0, one array at a time, and write them there to one file.
    All ranks must call this. If rank 0 cannot write, all raise PeerFailure with its error."""
    mine = with_arrays(state, np.asarray)
    told = gatherer.tell_all(with_arrays(mine, lambda array: [array.dtype.name, array.size]))
    lost: list[Exception] = []
    parts = _noting(gather_parts(gatherer, mine, told), lost)
    failure = ""
    if gatherer.collective.rank == 0:
        try:
            with atomic(path) as stream:
                writer = Writer(stream)
                for key, array_name, arrays in parts:
                    for rank, array in arrays.items():
                        told[rank]["tensors"][key]["arrays"][array_name] = writer.add(array)
                writer.finish(told)
        # Any exception, also of an invalid path, because the other ranks wait for the reason.
        except Exception as error:
            if lost:
                raise
            is_plain = isinstance(error, OSError)
            failure = str(error) if is_plain else f"{path!r}: {type(error).__name__}: {error}"
    for _ in parts:  # take part in the other ranks' allgathers, even after an error
        pass
    failures = [words for words in gatherer.tell_all(failure) if words]
    if failures:
        raise PeerFailure(
            f"rank 0 could not write the checkpoint: {failures[0]}; free space on the disk, or "
            "give a path that rank 0 can write"
        )


def _noting(parts: Parts, lost: list[Exception]) -> Parts:
    """Yield the parts. If gathering fails, append the error to ``lost``, and raise it. The caller
    then knows that collectives fail, so it cannot send the error to the other ranks."""
    try:
        yield from parts
    except Exception as error:
        lost.append(error)
        raise
