"""The gathering of all ranks' states into one file, array by array.

No rank ever holds more than one array of all ranks.
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
from hvd_sparse.state.state_form import State

Parts = Iterator["tuple[str, str, dict[int, np.ndarray]]"]
"""A tensor's key, an array's name, and the array of every rank that has it."""


class Gatherer:
    """Gather values and states over a collective, under one name, one after the other.

    Parameters
    ----------
    collective : of the ranks
    name : name of every gather
    timeout_s : seconds that one gather may take
    """

    def __init__(self, collective: Collective, name: str, timeout_s: float | None) -> None:
        self._collective = collective
        self._name = name
        self._timeout_s = timeout_s

    def _gather(self, data: np.ndarray) -> np.ndarray:
        return self._collective.allgather(data.view(np.uint8), self._name).wait(self._timeout_s)

    def tell_all(self, value: object) -> list[Any]:  # Any: whatever JSON the ranks have given
        """Return the JSON-able values of all ranks, in rank order.  Collective.

        Parameters
        ----------
        value : this rank's

        Raises
        ------
        ExchangeTimeout
            If a rank does not take part in time.
        """
        line = json.dumps(value).encode() + b"\n"
        return [
            json.loads(line)
            for line in self._gather(np.frombuffer(line, np.uint8)).tobytes().splitlines()
        ]

    def parts(self, mine: State, told: Sequence[State]) -> Parts:
        """Yield every array of all ranks, by tensor and name.  Collective.

        Every rank makes the same gathers, whichever arrays it has itself.

        Parameters
        ----------
        mine : this rank's state
        told : the states of all ranks, with [dtype, length] in the place of every array
        """
        for key in mine["model"]:
            names = sorted(
                {
                    name
                    for state in told
                    if key in state["tensors"]
                    for name in state["tensors"][key]["arrays"]
                }
            )
            for name in names:
                tensor = mine["tensors"].get(key)
                array = (
                    np.empty(0, np.uint8)
                    if tensor is None
                    else np.ascontiguousarray(tensor["arrays"][name])
                )
                yield key, name, _split(self._gather(array), told, key, name)


def _split(
    gathered: np.ndarray, told: Sequence[State], key: str, name: str
) -> dict[int, np.ndarray]:
    found, place = {}, 0
    for rank, state in enumerate(told):
        if key in state["tensors"]:
            dtype, length = state["tensors"][key]["arrays"][name]
            size = length * np.dtype(dtype).itemsize
            found[rank] = np.frombuffer(gathered[place : place + size].tobytes(), dtype)
            place += size
    return found


def gather_into_file(
    state: State,
    path: str | os.PathLike[str],
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> None:
    """Write the states of all ranks into one file, on rank 0.  Collective.

    Parameters
    ----------
    state : this rank's
    path : of the file, which rank 0 writes
    collective : of the ranks
    name : name of every gather
    timeout_s : seconds that one gather may take

    Raises
    ------
    PeerFailure
        On all ranks, with rank 0's reason, if the file cannot be written.
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
        # any exception: paths can be wrong in ways that are no OSError, and the other ranks wait
        # for the reason
        except Exception as error:
            if lost:
                raise
            failure = (
                str(error)
                if isinstance(error, OSError)
                else f"{path!r}: {type(error).__name__}: {error}"
            )
    for _ in parts:  # the other ranks gather all of them, whatever happened here
        pass
    failures = [words for words in gatherer.tell_all(failure) if words]
    if failures:
        raise PeerFailure(
            f"the checkpoint was not written: {failures[0]}; free the disk, or give a path that "
            "rank 0 can write"
        )


def _noting(parts: Parts, lost: list[Exception]) -> Parts:
    """Yield the parts, and note an error of gathering them, which no rank can be told of."""
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
