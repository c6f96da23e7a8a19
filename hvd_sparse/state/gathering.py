"""Gathering of all ranks' states into one file.

States are gathered array by array, so that a rank holds at most one array of all ranks at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.errors import PeerFailure
from hvd_sparse.state.checkpoint_file import Writer, atomic, with_arrays
from hvd_sparse.untyped import State

Parts = Iterator["tuple[str, str, dict[int, np.ndarray]]"]
"""Tuples of a tensor's key, an array's name, and the arrays of this name by rank."""


class Gatherer:
    """Allgathers of values and of states under one name, one after the other.

    ``timeout_s`` is the time limit of each, in seconds.
    """

    def __init__(self, collective: Collective, name: str, timeout_s: float | None) -> None:
        self._collective, self._name, self._timeout_s = collective, name, timeout_s

    def _gather(self, data: np.ndarray) -> np.ndarray:
        return self._collective.allgather(data.view(np.uint8), self._name).wait(self._timeout_s)

    def tell_all(self, value: object) -> list[Any]:  # Any, because it is JSON
        """Return the JSON-serializable values of all ranks, in rank order.  Collective."""
        line = json.dumps(value).encode() + b"\n"
        gathered = self._gather(np.frombuffer(line, np.uint8)).tobytes()
        return [json.loads(line) for line in gathered.splitlines()]

    def parts(self, mine: State, told: Sequence[State]) -> Parts:
        """Gather every array, by tensor and name.  Collective.

        Every rank takes part in all allgathers, even for arrays that it does not have.

        Parameters
        ----------
        mine : this rank's state
        told : the states of all ranks, with every array replaced by [dtype, length]
        """
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
                gathered, found, place = self._gather(array), {}, 0
                for rank, arrays in sizes.items():
                    dtype, length = arrays[name]
                    end = place + length * np.dtype(dtype).itemsize
                    found[rank] = np.frombuffer(gathered[place:end].tobytes(), dtype)
                    place = end
                yield key, name, found


def gather_into_file(
    state: State,
    path: str | os.PathLike[str],
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> None:
    """Write the states of all ranks to one file, on rank 0.  Collective.

    ``name`` and ``timeout_s``, in seconds, are those of every allgather.

    Raises
    ------
    PeerFailure : on all ranks, with rank 0's error, if the file cannot be written
    """
    gatherer = Gatherer(collective, name, timeout_s)
    mine = with_arrays(state, np.asarray)
    told = gatherer.tell_all(with_arrays(mine, lambda array: [array.dtype.name, array.size]))
    lost: list[Exception] = []
    parts = _noting(gatherer.parts(mine, told), lost)
    failure = ""
    if collective.rank == 0:
        try:
            _write(path, told, parts)
        # Any exception, because invalid paths do not only raise OSError, and the other ranks wait
        # for the reason.
        except Exception as error:
            if lost:
                raise
            failure = f"{path!r}: {type(error).__name__}: {error}"
            if isinstance(error, OSError):
                failure = str(error)
    for _ in parts:  # take part in the other ranks' allgathers, even after an error
        pass
    failures = [words for words in gatherer.tell_all(failure) if words]
    if failures:
        raise PeerFailure(
            f"rank 0 could not write the checkpoint: {failures[0]}; free the disk, or give a path "
            "that rank 0 can write"
        )


def _noting(parts: Parts, lost: list[Exception]) -> Parts:
    """Yield the parts, and note an error in gathering, which cannot be sent to the other ranks."""
    try:
        yield from parts
    except Exception as error:
        lost.append(error)
        raise


def _write(path: str | os.PathLike[str], told: Sequence[State], parts: Parts) -> None:
    with atomic(path) as stream:
        writer = Writer(stream)
        for key, name, arrays in parts:
            for rank, array in arrays.items():
                told[rank]["tensors"][key]["arrays"][name] = writer.add(array)
        writer.finish(told)
