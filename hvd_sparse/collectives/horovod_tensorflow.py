"""Collectives over Horovod's TensorFlow operations, for numpy arrays and in graphs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives import unfinished
from hvd_sparse.collectives.contract import ProcessSetRanks
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import ProcessSet

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        f"hvd_sparse.tensorflow needs Horovod built for TensorFlow ({error}); build it with "
        "HOROVOD_WITH_TENSORFLOW=1, as scripts/setup does"
    ) from error


class _ThreadPending:
    """An eager Horovod operation, run in a separate thread, because the call blocks until the
    result has arrived, without a time limit. In the calling thread, the operation could also become
    part of a graph that is being traced."""

    def __init__(self, call: Callable[[], tf.Tensor], name: str) -> None:
        self._name = name
        self._outcome: list[np.ndarray | Exception] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], tf.Tensor]) -> None:
        try:
            self._outcome.append(np.asarray(call()))
        except Exception as error:
            self._outcome.append(error)  # for ``wait``

    def wait(self, timeout_s: float | None) -> np.ndarray:
        self._thread.join(timeout_s)
        if not self._outcome:
            raise unfinished("Horovod", self._name, timeout_s)
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_done(self) -> bool:
        return not self._thread.is_alive()


NAME = re.compile(r"[A-Za-z0-9_./-]*")
"""Pattern of names, with the characters that TensorFlow accepts in operations' names."""


def check_name(name: str | None) -> None:
    if name is not None and not NAME.fullmatch(name):
        raise InvalidOption(
            f"name is {name!r}: TensorFlow's operations get this name, so use only letters, digits "
            "and _ . / -, as in 'model.a-2'"
        )


class HorovodTensorflowCollective(ProcessSetRanks):
    horovod = hvd

    def allgather(self, array: np.ndarray, name: str) -> _ThreadPending:
        return self._start(hvd.allgather, array, name)

    def allreduce(self, array: np.ndarray, name: str) -> _ThreadPending:
        return self._start(hvd.allreduce, array, name, op=hvd.Sum)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _ThreadPending:
        def operation(tensor: tf.Tensor, **options: Any) -> tf.Tensor:
            return hvd.alltoall(tensor, tf.constant(splits, tf.int32), **options)[0]

        return self._start(operation, array, name)

    def _start(
        self, operation: Callable[..., Any], array: np.ndarray, name: str, **options: Any
    ) -> _ThreadPending:
        # Ignore the name scope, because ranks may start the collective in different scopes.
        options |= {"name": name, "process_set": self.process_set, "ignore_name_scope": True}
        return _ThreadPending(lambda: operation(tf.constant(array), **options), name)


def broadcast_variables(
    variables: Sequence[tf.Variable],
    root_rank: int = 0,
    process_set: ProcessSet = hvd.global_process_set,
) -> None:
    """Broadcast variables from ``root_rank``, in place. Collective; every rank of ``process_set``
    gives its variables in the same order."""

    @tf.function  # runs the broadcasts at the same time
    def broadcast() -> None:
        for position, variable in enumerate(variables):
            value = variable.read_value()
            is_unknown = value.dtype == tf.bfloat16  # to Horovod
            if is_unknown:
                value = tf.cast(tf.bitcast(value, tf.int16), tf.int32)
            # Horovod's own function names the broadcast after the variable. The name of a Keras 3
            # variable differs between a new model and a loaded one, and these ranks would hang.
            name = f"HorovodBroadcast_hvd_sparse.{position}"
            value = hvd.broadcast(value, root_rank, name=name, process_set=process_set)
            if is_unknown:
                value = tf.bitcast(tf.cast(value, tf.int16), tf.bfloat16)
            variable.assign(value)

    broadcast()


GRAPH_PHASES: dict[str, Callable[[tf.Tensor, tf.Tensor, str, ProcessSet], tf.Tensor]] = {
    # Horovod's elastic run only recovers from errors that contain "HorovodAllgather",
    # "HorovodAllreduce" or "HorovodBroadcast". After other errors it ends as if it had succeeded.
    "allgather": lambda array, splits, name, process_set: hvd.allgather(
        array, name=f"HorovodAllgather_{name}", process_set=process_set
    ),
    "alltoall": lambda array, splits, name, process_set: hvd.alltoall(
        array, splits, name=f"HorovodAllgather_{name}", process_set=process_set
    )[0],
    "allreduce": lambda array, splits, name, process_set: hvd.allreduce(
        array, op=hvd.Sum, name=f"HorovodAllreduce_{name}", process_set=process_set
    ),
}
"""For each kind of collective, a function that adds Horovod's operation to the graph. Its arguments
are the 1-D tensor, the lengths of an alltoall's parts, the name and the process set. The graph's
name scopes become part of the collective's name, as with Horovod's own operations. Otherwise, code
that is traced twice in one graph would submit the same name twice."""
