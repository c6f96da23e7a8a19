"""Collectives over Horovod's TensorFlow operations: eager ones for numpy arrays, and those that a
graph is built from."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives._process_set import ProcessSetRanks
from hvd_sparse.errors import ExchangeTimeout, InvalidOption

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        f"hvd_sparse.tensorflow needs Horovod built for TensorFlow ({error}); build it with "
        "HOROVOD_WITH_TENSORFLOW=1, "
        "as scripts/setup does"
    ) from error


class _ThreadPending:
    """An eager operation blocks and has no time limit, so it waits in a thread of its own.

    A thread also leaves behind whatever graph is being traced where the collective is started.
    """

    def __init__(self, call: Callable[[], Any], name: str) -> None:
        self._name = name
        self._outcome: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome.append(np.asarray(call()))
        except Exception as error:
            self._outcome.append(error)

    def wait(self, timeout_s: float | None) -> np.ndarray:
        self._thread.join(timeout_s)
        if not self._outcome:
            raise ExchangeTimeout(
                f"Horovod's {self._name!r} did not finish in {timeout_s} s: some rank did not "
                "submit it, or is stopped; "
                "look at the ranks' output, or raise timeout_s"
            )
        if isinstance(self._outcome[0], Exception):
            raise self._outcome[0]
        result: np.ndarray = self._outcome[0]
        return result

    def is_done(self) -> bool:
        return not self._thread.is_alive()


NAME = re.compile(r"[A-Za-z0-9_./-]*")
"""What TensorFlow takes behind the beginning of an operation's name."""


def check_name(name: str | None) -> None:
    """InvalidOption for one that no operation can bear."""
    if name is not None and not NAME.fullmatch(name):
        raise InvalidOption(
            f"name is {name!r}: TensorFlow's operations bear it, so letters, digits and _ . / - "
            "alone, as in 'model.a-2'"
        )


class HorovodTensorflowCollective(ProcessSetRanks):
    """Implements ``collectives.contract.Collective`` over a process set, eagerly."""

    horovod = hvd

    def allgather(self, array: np.ndarray, name: str) -> _ThreadPending:
        return _ThreadPending(
            lambda: hvd.allgather(tf.constant(array), name=name, process_set=self.process_set), name
        )

    def allreduce(self, array: np.ndarray, name: str) -> _ThreadPending:
        def call() -> Any:
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

        def call() -> Any:
            return hvd.broadcast(
                tf.constant(array),
                global_root,
                name=name,
                process_set=self.process_set,
                ignore_name_scope=True,
            )

        return _ThreadPending(call, name)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _ThreadPending:
        def call() -> Any:
            sent = tf.constant(splits, tf.int32)
            return hvd.alltoall(
                tf.constant(array),
                sent,
                name=name,
                process_set=self.process_set,
                ignore_name_scope=True,
            )[0]

        return _ThreadPending(call, name)


def graph_allgather(array: tf.Tensor, splits: tf.Tensor, name: str, process_set: Any) -> tf.Tensor:
    """An allgather of 1-D tensors as an operation of the graph that is being built.

    The graph's name scopes become part of the collective's name, as they do for Horovod's own
    operations: a trace that runs twice in one graph would otherwise submit one name twice at a
    time.

    Its own name begins as Horovod's do: Horovod's elastic run looks for that in an error, and takes
    others for the end.
    """
    return hvd.allgather(array, name=f"HorovodAllgather_{name}", process_set=process_set)


def graph_alltoall(array: tf.Tensor, splits: tf.Tensor, name: str, process_set: Any) -> tf.Tensor:
    """A personalised exchange of 1-D tensors, in the graph."""
    return hvd.alltoall(array, splits, name=name, process_set=process_set)[0]


def graph_allreduce(array: tf.Tensor, splits: tf.Tensor, name: str, process_set: Any) -> tf.Tensor:
    """A sum, in the graph."""
    return hvd.allreduce(array, op=hvd.Sum, name=name, process_set=process_set)


def graph_reduce(
    array: tf.Tensor, op: Any, scales: tuple[float, float], name: str, process_set: Any
) -> tf.Tensor:
    """What Horovod makes of an array by one of its reductions, in the graph.

    scales : that Horovod multiplies with before and after
    """
    return hvd.allreduce(
        array,
        op=op,
        prescale_factor=scales[0],
        postscale_factor=scales[1],
        name=f"HorovodAllreduce_{name}",
        process_set=process_set,
    )


GRAPH_PHASES: dict[str, Callable[[tf.Tensor, tf.Tensor, str, Any], tf.Tensor]] = {
    "allgather": graph_allgather,
    "alltoall": graph_alltoall,
    "allreduce": graph_allreduce,
}
"""How a graph is built from an exchange's phases."""
