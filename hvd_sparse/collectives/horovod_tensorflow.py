"""Collectives over Horovod's TensorFlow operations, eager for numpy arrays and in graphs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives._process_set import ProcessSet, ProcessSetRanks
from hvd_sparse.errors import ExchangeTimeout, InvalidOption

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        f"hvd_sparse.tensorflow needs Horovod built for TensorFlow ({error}); build it with "
        "HOROVOD_WITH_TENSORFLOW=1, as scripts/setup does"
    ) from error


class _ThreadPending:
    """An eager operation in a separate thread, because it blocks and has no time limit.

    The thread also isolates it from a graph that is being traced in the calling thread.
    """

    def __init__(self, call: Callable[[], tf.Tensor], name: str) -> None:
        self._name = name
        self._outcome: list[np.ndarray | Exception] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], tf.Tensor]) -> None:
        try:
            self._outcome.append(np.asarray(call()))
        except Exception as error:
            # ``wait`` raises it, in the thread that needs the result.
            self._outcome.append(error)

    def wait(self, timeout_s: float | None) -> np.ndarray:
        self._thread.join(timeout_s)
        if not self._outcome:
            raise ExchangeTimeout(
                f"Horovod's {self._name!r} did not finish in {timeout_s} s: some rank has not "
                "submitted it or has stopped; look at the ranks' output, or raise timeout_s"
            )
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_done(self) -> bool:
        return not self._thread.is_alive()


NAME = re.compile(r"[A-Za-z0-9_./-]*")
"""Characters that TensorFlow accepts in an operation's name, after the first."""


def check_name(name: str | None) -> None:
    """Raise InvalidOption for a name that is not valid in TensorFlow operations."""
    if name is not None and not NAME.fullmatch(name):
        raise InvalidOption(
            f"name is {name!r}: TensorFlow's operations get this name, so use only letters, digits "
            "and _ . / -, as in 'model.a-2'"
        )


class HorovodTensorflowCollective(ProcessSetRanks):
    """Eager collectives over a process set.  Implements ``collectives.contract.Collective``."""

    horovod = hvd

    def allgather(self, array: np.ndarray, name: str) -> _ThreadPending:
        return _ThreadPending(
            lambda: hvd.allgather(tf.constant(array), name=name, process_set=self.process_set), name
        )

    def allreduce(self, array: np.ndarray, name: str) -> _ThreadPending:
        # Ignore the name scope, because ranks may start the collective in different ones.
        def call() -> tf.Tensor:
            return hvd.allreduce(
                tf.constant(array),
                op=hvd.Sum,
                name=name,
                process_set=self.process_set,
                ignore_name_scope=True,
            )

        return _ThreadPending(call, name)

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _ThreadPending:
        global_root = self.global_rank(root)

        def call() -> tf.Tensor:
            return hvd.broadcast(
                tf.constant(array),
                global_root,
                name=name,
                process_set=self.process_set,
                ignore_name_scope=True,
            )

        return _ThreadPending(call, name)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _ThreadPending:
        def call() -> tf.Tensor:
            sent = tf.constant(splits, tf.int32)
            return hvd.alltoall(
                tf.constant(array),
                sent,
                name=name,
                process_set=self.process_set,
                ignore_name_scope=True,
            )[0]

        return _ThreadPending(call, name)


def graph_allgather(
    array: tf.Tensor, splits: tf.Tensor, name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Add an allgather of 1-D tensors to the graph, and return its result.

    The graph's name scopes become part of the collective's name, as with Horovod's own operations,
    because code that is traced twice in one graph would otherwise submit the same name twice.

    The operation's name starts with "HorovodAllgather", because Horovod's elastic run only recovers
    from errors that contain this name.
    """
    return hvd.allgather(array, name=f"HorovodAllgather_{name}", process_set=process_set)


def graph_alltoall(
    array: tf.Tensor, splits: tf.Tensor, name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Add an alltoall of 1-D tensors to the graph, and return its result."""
    return hvd.alltoall(array, splits, name=name, process_set=process_set)[0]


def graph_allreduce(
    array: tf.Tensor, splits: tf.Tensor, name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Add a sum over all ranks to the graph, and return its result."""
    return hvd.allreduce(array, op=hvd.Sum, name=name, process_set=process_set)


def graph_reduce(
    array: tf.Tensor, op: object, scales: tuple[float, float], name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Add a Horovod allreduce to the graph, and return its result.

    Parameters
    ----------
    array : this rank's tensor
    op : Horovod's constant for the reduction, for example ``hvd.Average``
    scales : Horovod's prescale and postscale factors
    name : name of the collective
    process_set : the participating ranks
    """
    return hvd.allreduce(
        array,
        op=op,
        prescale_factor=scales[0],
        postscale_factor=scales[1],
        name=f"HorovodAllreduce_{name}",
        process_set=process_set,
    )


GRAPH_PHASES: dict[str, Callable[[tf.Tensor, tf.Tensor, str, ProcessSet], tf.Tensor]] = {
    "allgather": graph_allgather,
    "alltoall": graph_alltoall,
    "allreduce": graph_allreduce,
}
"""Graph operations, by the kind of an exchange's phase."""
