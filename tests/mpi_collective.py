"""Collectives over mpi4py, for numpy programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI
from mpi4py.util.dtlib import from_numpy_dtype


@dataclass(eq=False)
class _LazyPending:
    """A collective that runs in ``wait``, because all ranks wait in the same order."""

    _call: Callable[[], np.ndarray]

    def wait(self, timeout_s: float | None) -> np.ndarray:
        return self._call()

    def is_done(self) -> bool:
        return True  # ``wait`` runs the collective


class MpiCollective:
    """Blocking collectives over an mpi4py communicator; ``wait`` ignores its time limit."""

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        self._comm = MPI.COMM_WORLD if comm is None else comm

    @property
    def rank(self) -> int:
        return int(self._comm.Get_rank())

    @property
    def world_size(self) -> int:
        return int(self._comm.Get_size())

    @property
    def nodes(self) -> tuple[int, ...]:
        names = self._comm.allgather(MPI.Get_processor_name())
        return tuple(names.index(name) for name in names)

    def allgather(self, array: np.ndarray, name: str) -> _LazyPending:
        return _LazyPending(lambda: self._allgather(array))

    def _allgather(self, array: np.ndarray) -> np.ndarray:
        # Lengths may differ between ranks, and MPI needs them in advance.
        counts = np.array(self._comm.allgather(array.size))
        gathered = np.empty(counts.sum(), array.dtype)
        self._comm.Allgatherv(array, [gathered, counts, None, from_numpy_dtype(array.dtype)])
        return gathered

    def allreduce(self, array: np.ndarray, name: str) -> _LazyPending:
        def call() -> np.ndarray:
            total = np.empty_like(array)
            self._comm.Allreduce(array, total)
            return total

        return _LazyPending(call)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _LazyPending:
        def call() -> np.ndarray:
            arriving = np.array(self._comm.alltoall(splits.tolist()))
            received = np.empty(arriving.sum(), array.dtype)
            kind = from_numpy_dtype(array.dtype)
            self._comm.Alltoallv([array, splits, None, kind], [received, arriving, None, kind])
            return received

        return _LazyPending(call)
