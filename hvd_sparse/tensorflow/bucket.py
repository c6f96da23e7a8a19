"""Buckets while a graph is traced: the tensors of one of Horovod's groups, their message, and the
contexts that ``compress`` passes to ``decompress``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import GRAPH_PHASES
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.buckets import check_merged
from hvd_sparse.tensorflow.branches import Unbranched
from hvd_sparse.tensorflow.graph_functions import GraphFunctions
from hvd_sparse.tensorflow.host import HOST, call_numpy
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet, Value


class GraphBucket:
    """The tensors of one message, while a graph is traced.

    Horovod hands over all tensors of a group before it requests the first result, in the same
    graph.  So a group's message is built when the first result is requested, and the message of a
    single tensor at once.

    Parameters
    ----------
    functions : functions that the graph calls
    phases : collectives of the exchange, by the names of ``Exchange.phases``
    name : of the collectives
    process_set : of the collectives
    dtype : of the carriers
    branches : the branches that send the message
    is_group : more tensors may follow the first
    """

    def __init__(
        self,
        functions: GraphFunctions,
        phases: Sequence[str],
        name: str,
        process_set: ProcessSet,  # Horovod gives its process sets no types
        dtype: tf.DType,
        branches: Unbranched,
        *,
        is_group: bool,
    ) -> None:
        self._functions = functions
        self._phases = phases
        self._name = name
        self._process_set = process_set
        self._dtype = dtype
        self._is_group = is_group
        self.branches = branches
        self._numbers: list[tf.Tensor] = []
        self._specs: list[TensorSpec] = []
        self._gathered: tf.Tensor | None = None

    def join(self, spec: TensorSpec, configuration: Configuration) -> None:
        """Add a tensor.  InvalidOption where all are to be selected from as one, and cannot be."""
        is_alone = not self._is_group and configuration.groups != PLANNED
        if configuration.select_over == "group" and is_alone:
            raise InvalidOption(
                f"select_over is 'group', and Horovod hands over the gradient of {spec.key!r} "
                "alone: give groups, or num_groups, to hvd.DistributedGradientTape or "
                "hvd.DistributedOptimizer, make the compressor with groups='planned', or leave "
                "select_over out"
            )
        self._specs.append(spec)
        check_merged(self._specs, [tuple(range(len(self._specs)))], configuration)

    def send(
        self, flat: tf.Tensor, token: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the array that Horovod is to reduce for this tensor, and the tensor's number."""
        functions = self._functions
        function, moved = (
            (functions.take, []) if self._is_group else (functions.send, self._moved(0))
        )
        inputs = [flat, token, scale, *self.branches.inputs]
        dtypes = [flat.dtype, tf.int64, *moved]

        def build() -> Value:
            return call_numpy(function, inputs, dtypes, name="hvd_sparse_send")

        wire, number, *first = self.branches.send(build, flat, moved)
        wire.set_shape([None])
        self._numbers.append(number)
        if first:
            self._gathered = self._exchange(*first)
        return wire, number

    def gathered(self) -> tf.Tensor:
        """Return all ranks' data for all these tensors; no further tensor can join."""
        if self._gathered is None:
            self._gathered = self._exchange()
        return self._gathered

    def _exchange(self, *first: tf.Tensor) -> tf.Tensor:
        """Return the result of the exchange, started with the first phase's data, or with the
        numbers of all tensors."""

        def build() -> tf.Tensor:
            sealed = first or call_numpy(
                self._functions.seal, self._numbers, self._moved(0), name="hvd_sparse_seal"
            )
            return self._move(*sealed)

        return self.branches.exchange(build, self._moved(len(self._phases) - 1)[0])

    def _move(self, array: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Build all phases, one operation each.

        Their names take the graph's scopes, which are those of the carriers and tell messages
        apart: a rank that cannot place a gradient so still meets the others.
        """
        name = self._name
        for phase, kind in enumerate(self._phases):
            if phase:
                array, splits = call_numpy(
                    self._functions.advance,
                    [self._numbers[0], array],
                    self._moved(phase),
                    name="hvd_sparse_advance",
                )
                name = f"{self._name}.{phase}"
            array.set_shape([None])
            splits.set_shape([None])
            with tf.device(HOST):
                array = GRAPH_PHASES[kind](array, splits, name, self._process_set)
        return array

    def _moved(self, phase: int) -> list[tf.DType]:
        """Return the dtypes of a phase's input."""
        return [self._dtype if self._phases[phase] == "allreduce" else tf.uint8, tf.int32]


@dataclass(frozen=True, eq=False)
class SparseContext:
    """A compressed gradient on its way, and the bucket that it is in."""

    number: tf.Tensor
    bucket: GraphBucket
    flat: tf.Tensor
    spec: TensorSpec
    dtype: tf.DType
    shape: tf.TensorShape
    parameter: tf.Tensor


@dataclass(frozen=True, eq=False)
class DenseContext:
    """A gradient that Horovod's allreduce takes, as float32 where it has 16 bits."""

    dtype: tf.DType
    token: tf.Tensor
    scale: tf.Tensor
    parameter: tf.Tensor
