"""Collectives over Horovod's TensorFlow operations: eager ones for numpy arrays, and a graph's."""

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
    """An eager operation in a thread of its own, as it blocks and has no time limit.

    A thread also leaves behind whatever graph is being traced where the collective is started.
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
            # Raised where the result is waited for, not in a thread that nobody watches.
            self._outcome.append(error)

    def wait(self, timeout_s: float | None) -> np.ndarray:
        self._thread.join(timeout_s)
        if not self._outcome:
            raise ExchangeTimeout(
                f"Horovod's {self._name!r} did not finish in {timeout_s} s: some rank did not "
                "submit it, or is stopped; look at the ranks' output, or raise timeout_s"
            )
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_done(self) -> bool:
        return not self._thread.is_alive()


NAME = re.compile(r"[A-Za-z0-9_./-]*")
"""Characters that TensorFlow takes in an operation's name, after the first."""


def check_name(name: str | None) -> None:
    """Raise InvalidOption for a name that no operation of TensorFlow's can bear."""
    if name is not None and not NAME.fullmatch(name):
        raise InvalidOption(
            f"name is {name!r}: TensorFlow's operations bear it, so letters, digits and _ . / - "
            "alone, as in 'model.a-2'"
        )


class HorovodTensorflowCollective(ProcessSetRanks):
    """Eager collectives over a process set.  Implements ``collectives.contract.Collective``."""

    horovod = hvd

    def allgather(self, array: np.ndarray, name: str) -> _ThreadPending:
        return _ThreadPending(
            lambda: hvd.allgather(tf.constant(array), name=name, process_set=self.process_set), name
        )

    def allreduce(self, array: np.ndarray, name: str) -> _ThreadPending:
        # Without the name scope: ranks may start the collective inside different ones.
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
    """Return an allgather of 1-D tensors as an operation of the graph that is being built.

    The graph's name scopes become part of the collective's name, as they do for Horovod's own
    operations: a trace that runs twice in one graph would otherwise submit one name twice at a
    time.

    The operation's own name begins as Horovod's do: Horovod's elastic run looks for that in an
    error, and takes others for the end.
    """
    return hvd.allgather(array, name=f"HorovodAllgather_{name}", process_set=process_set)


def graph_alltoall(
    array: tf.Tensor, splits: tf.Tensor, name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Return an alltoall of 1-D tensors, in the graph."""
    return hvd.alltoall(array, splits, name=name, process_set=process_set)[0]


def graph_allreduce(
    array: tf.Tensor, splits: tf.Tensor, name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Return a sum, in the graph."""
    return hvd.allreduce(array, op=hvd.Sum, name=name, process_set=process_set)


def graph_reduce(
    array: tf.Tensor, op: object, scales: tuple[float, float], name: str, process_set: ProcessSet
) -> tf.Tensor:
    """Return Horovod's reduction of an array, in the graph.

    Parameters
    ----------
    array : this rank's part
    op : Horovod's name for the reduction, such as ``hvd.Average``
    scales : factors that Horovod multiplies with before and after
    name : of the collective
    process_set : the ranks that take part
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
"""Operations of a graph, by the phase of an exchange that they do."""
