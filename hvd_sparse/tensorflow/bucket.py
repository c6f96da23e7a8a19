"""Buckets while a graph is traced: the tensors of one of Horovod's groups, their message, and the
contexts that ``compress`` passes to ``decompress``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import GRAPH_PHASES
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.buckets import check_merged
from hvd_sparse.tensorflow.fallback import Unbranched
from hvd_sparse.tensorflow.graph_functions import HOST, GraphFunctions, call_numpy
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import ProcessSet, Value


@dataclass(eq=False)
class GraphBucket:
    """The tensors of one message, while a graph is traced.

    Horovod hands over all tensors of a group before it requests the first result, in the same
    graph.  So a group's message is built when the first result is requested, and the message of a
    single tensor at once.
    """

    functions: GraphFunctions
    phases: Sequence[str]
    name: str
    process_set: ProcessSet
    dtype: tf.DType
    branches: Unbranched
    is_group: bool
    _numbers: list[tf.Tensor] = field(default_factory=list)
    _specs: list[TensorSpec] = field(default_factory=list)
    _gathered: tf.Tensor | None = None

    def join(self, spec: TensorSpec, configuration: Configuration) -> None:
        """Add a tensor.  InvalidOption if ``select_over`` is "group" and this cannot be one."""
        is_alone = not self.is_group and configuration.groups != PLANNED
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
        function: Callable[..., Value] = self.functions.take
        moved: list[tf.DType] = []
        if not self.is_group:
            function, moved = self.functions.send, self._moved(0)
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
        def build() -> tf.Tensor:
            sealed = first or call_numpy(
                self.functions.seal, self._numbers, self._moved(0), name="hvd_sparse_seal"
            )
            return self._move(*sealed)

        return self.branches.exchange(build, self._moved(len(self.phases) - 1)[0])

    def _move(self, array: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        """Build all phases, one operation each.

        Their names take the graph's scopes, which are those of the carriers and tell messages
        apart: a rank that cannot place a gradient so still meets the others.
        """
        name = self.name
        for phase, kind in enumerate(self.phases):
            if phase:
                array, splits = call_numpy(
                    self.functions.advance,
                    [self._numbers[0], array],
                    self._moved(phase),
                    name="hvd_sparse_advance",
                )
                name = f"{self.name}.{phase}"
            array.set_shape([None])
            splits.set_shape([None])
            with tf.device(HOST):
                array = GRAPH_PHASES[kind](array, splits, name, self.process_set)
        return array

    def _moved(self, phase: int) -> list[tf.DType]:
        return [self.dtype if self.phases[phase] == "allreduce" else tf.uint8, tf.int32]


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
