"""All ranks' states in one file, array by array, so that no rank holds more than one array of
all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.errors import PeerFailure
from hvd_sparse.resilience.checkpoint_file import Writer, atomic, with_arrays

Parts = Iterator["tuple[str, str, dict[int, np.ndarray]]"]
"""A tensor's key, an array's name, and the array of every rank that has it."""


class Gatherer:
    """Brings states together over a collective, every gather under one name and waited for."""

    def __init__(self, collective: Collective, name: str, timeout_s: float | None) -> None:
        self._collective = collective
        self._name = name
        self._timeout_s = timeout_s

    def _gather(self, data: np.ndarray) -> np.ndarray:
        return self._collective.allgather(data.view(np.uint8), self._name).wait(self._timeout_s)

    def tell_all(self, value: Any) -> list[Any]:
        """A JSON-able value of every rank, in rank order."""
        line = json.dumps(value).encode() + b"\n"
        return [
            json.loads(line)
            for line in self._gather(np.frombuffer(line, np.uint8)).tobytes().splitlines()
        ]

    def parts(self, mine: Mapping[str, Any], told: list[dict[str, Any]]) -> Parts:
        """All arrays of all ranks: the same gathers on every rank, whatever each of them has.

        told : the states of all ranks, with type and length in the place of every array
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
    gathered: np.ndarray, told: list[dict[str, Any]], key: str, name: str
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
    state: Mapping[str, Any],
    path: str | os.PathLike[str],
    collective: Collective,
    name: str,
    timeout_s: float | None,
) -> None:
    """Write the states of all ranks into one file, on rank 0.  Collective.

    PeerFailure on all ranks, in rank 0's words, if it cannot be written.
    """
    gatherer = Gatherer(collective, name, timeout_s)
    mine = with_arrays(state, np.asarray)
    told = gatherer.tell_all(with_arrays(mine, lambda array: [array.dtype.name, array.size]))
    parts = gatherer.parts(mine, told)
    failure = ""
    if collective.rank == 0:
        try:
            _write(path, told, parts)
        except OSError as error:
            failure = str(error)
    for _ in parts:  # the other ranks gather all of them, whatever happened here
        pass
    failures = [words for words in gatherer.tell_all(failure) if words]
    if failures:
        raise PeerFailure(
            f"the checkpoint was not written: {failures[0]}; free the disk, or give a path that "
            "rank 0 can write"
        )


def _write(path: str | os.PathLike[str], told: list[dict[str, Any]], parts: Parts) -> None:
    with atomic(path) as stream:
        writer = Writer(stream)
        for key, name, arrays in parts:
            for rank, array in arrays.items():
                told[rank]["tensors"][key]["arrays"][name] = writer.add(array)
        writer.finish(told)
