"""``Compression.auto`` in a graph: branches for all ways, and each step's choice among them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import graph_reduce
from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.plan.fallback import Fallback, Trial
from hvd_sparse.plan.policy import Owner
from hvd_sparse.tensorflow.graph_functions import (
    DENSE,
    EVERYTHING,
    FP16,
    SPARSE,
    GraphFunctions,
    call_numpy,
)
from hvd_sparse.tensorflow.identity import CallSite, runtime_token
from hvd_sparse.untyped import ProcessSet, Value

WAYS = {"sparse": SPARSE, "dense": DENSE, "fp16": FP16}
DENSE_STEP = "the gradients of a step, which Horovod averages"


Build = Callable[[], Value]
"""Builds operations of the graph, and returns their results."""


class Unbranched:
    """Graph part of a compressor that always compresses: it has a single branch."""

    inputs: Sequence[tf.Tensor] = ()
    """Extra inputs of the operation that sends."""

    def send(self, build: Build, flat: tf.Tensor, moved: Sequence[tf.DType]) -> Value:
        """Return the array to reduce, the tensor's number, and the first phase's data, of dtypes
        ``moved``."""
        return build()

    def exchange(self, build: Build, dtype: tf.DType) -> tf.Tensor:
        """Return the data that the last phase received: 1-D, of this dtype."""
        return build()

    def receive(self, build: Build, flat: tf.Tensor, reduced: tf.Tensor) -> tf.Tensor:
        """Return the reduced gradient, flat; ``reduced`` is Horovod's reduction of the array."""
        return build()


@dataclass(frozen=True, eq=False)
class Branched(Unbranched):
    """Graph part with one branch for each way (sparse, dense, fp16); a number selects one in each
    step.

    Collectives of the other branches are not submitted.  All ranks take the same branch.

    Attributes
    ----------
    way : int32, "SPARSE" and the others
    is_timed : bool, whether to call ``note_end``
    note_end : called when a result has arrived
    """

    way: tf.Tensor
    is_sparse: tf.Tensor
    is_half: tf.Tensor
    is_timed: tf.Tensor
    note_end: Callable[[np.ndarray], np.int32]
    site: CallSite
    name: str
    process_set: ProcessSet

    @property
    def inputs(self) -> Sequence[tf.Tensor]:  # type: ignore[override]
        """The number of the branch."""
        return [self.way]

    def send(self, build: Build, flat: tf.Tensor, moved: Sequence[tf.DType]) -> Value:
        """Return the gradient itself on a dense way, otherwise the result of the sparse branch.

        A float16 gradient has an allreduce of its own, and one entry stands for it here, because
        Horovod's operation has a single dtype.
        """

        def aside() -> list[tf.Tensor]:
            wire = tf.cond(self.is_half, lambda: tf.ones([1], flat.dtype), lambda: flat)
            return [wire, tf.constant(-1, tf.int64), *(tf.zeros([0], dtype) for dtype in moved)]

        return tf.cond(self.is_sparse, lambda: list(build()), aside)

    def exchange(self, build: Build, dtype: tf.DType) -> tf.Tensor:
        return tf.cond(self.is_sparse, build, lambda: tf.zeros([0], dtype))

    def receive(self, build: Build, flat: tf.Tensor, reduced: tf.Tensor) -> tf.Tensor:
        def half() -> tf.Tensor:
            site, name = self.site, f"hvd_sparse.{self.name}.fp16"
            summed = graph_reduce(
                tf.cast(flat, tf.float16), site.op, site.scales, name, self.process_set
            )
            return tf.cast(summed, flat.dtype)

        def noted() -> tf.Tensor:
            # On all branches, so that the measurement delays all alike.
            end = call_numpy(self.note_end, [result[:1]], tf.int32, name="hvd_sparse_end")
            with tf.control_dependencies([end]):
                return tf.identity(result)

        result = tf.cond(
            self.is_sparse, build, lambda: tf.cond(self.is_half, half, lambda: reduced)
        )
        return tf.cond(self.is_timed, noted, lambda: result)


class GraphOwner(Owner, Protocol):
    """The part of a TensorFlow compressor that this policy uses."""

    process_set: ProcessSet
    functions: GraphFunctions


class GraphFallback(Fallback):
    """Policy that follows a trial's verdict by a branch of the graph.

    One function per step chooses the branch, when the first gradient is there, for all gradients of
    one call of Horovod.  On a dense way Horovod reduces them without a carrier and without a call
    of Python; the step before it sends all residuals along.
    """

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        super().__init__(trial, sends_all=sends_all)
        self._lock = threading.Lock()
        self._built_for: object | None = None
        self._branches: Branched | None = None
        # It holds nothing: operations that touch it run in the program's order, so in the same
        # order on all ranks.
        with tf.init_scope(), tf.device("cpu"):
            self._order = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvd_sparse_order")

    # -- while a graph is traced ------------------------------------------------------------------

    def branches(self, owner: GraphOwner, site: CallSite) -> Branched:
        """Return the branches of all gradients of one call of Horovod."""
        if self._branches is None or self._built_for is not site.gradients:
            self._built_for, self._branches = site.gradients, self._build(owner, site)
        return self._branches

    def _build(self, owner: GraphOwner, site: CallSite) -> Branched:
        """Build the operation that returns a step's way, outside Horovod's branches.

        It waits for one gradient: the last of the list, which most backward passes compute first.
        """
        graph = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
        if graph is None or site.gradients is None or site.variables is None:
            raise UnsupportedInput(
                "auto needs to know which gradients make a step: give it to "
                "hvd.DistributedGradientTape or hvd.DistributedOptimizer, under TensorFlow 2's "
                "control flow"
            )
        pairs = [(g, v) for g, v in zip(site.gradients, site.variables) if isinstance(g, tf.Tensor)]
        is_sparse = owner.configuration.is_sparse
        with graph.as_default():
            tokens = [runtime_token(v) for _, v in pairs if is_sparse(*_size_of(v))]
            first = tf.reshape(pairs[-1][0], [-1])[:1]
            inputs = [self._order.read_value(), first, tf.stack(tokens)]
            way, is_timed, order = call_numpy(
                partial(self._begin_step, owner),
                inputs,
                [tf.int32, tf.bool, tf.int64],
                name="hvd_sparse_way",
            )
            for told in (way, is_timed, order):
                told.set_shape([])
            self._order.assign(order)
            goes_sparse, is_half = way <= EVERYTHING, tf.equal(way, FP16)
        return Branched(
            way, goes_sparse, is_half, is_timed, self._note_end, site, owner.name, owner.process_set
        )

    # -- at every step ----------------------------------------------------------------------------

    def _begin_step(
        self, owner: GraphOwner, order: np.int64, first: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.int32, np.bool_, np.int64]:
        with self._lock:
            way, is_timed = DENSE, False
            if owner.process_set.included() and owner.collective.world_size > 1:
                way = self._choose(owner, [owner.functions.position(token) for token in tokens])
                is_timed = self.trial.is_timed  # else Horovod reduces nothing
        return np.int32(way), np.bool_(is_timed), order

    def _choose(self, owner: GraphOwner, positions: Sequence[int | None]) -> int:
        way = WAYS[self.next_way(owner)]
        known = [position for position in positions if position is not None]
        if way == SPARSE:
            for position in known:
                self.debts.owe(position)
        elif len(known) < len(positions):
            return SPARSE  # where it is refused, on all ranks
        elif self.sends_all or (
            any(map(self.debts.is_owed, known)) and not self._are_paid(owner, known)
        ):
            return EVERYTHING
        else:
            self._count(owner, known, way)
        return way

    def _are_paid(self, owner: GraphOwner, positions: Sequence[int]) -> bool:
        """Return whether all ranks have seen that all residuals were sent.  Collective.

        Results come in any order, and a rank that has not seen the last one yet would choose
        another way than the others.
        """
        owing = [position for position in positions if self.debts.is_owed(position)]
        mine = all(self.debts.is_paid(position) for position in owing)
        are_paid = bool(self.agree(owner, np.array([float(mine)])).all())
        if are_paid:
            for position in owing:
                self.debts.settle(position)
        return are_paid

    def _count(self, owner: GraphOwner, positions: Sequence[int], way: int) -> None:
        """Count the tensors and bytes of a dense way, because no other code sees them."""
        step, ledger = owner.step, owner.watchdog.ledger
        specs = [step.specs[position] for position in positions]
        itemsizes = [2 if way == FP16 else spec.accumulator.itemsize for spec in specs]
        nbytes = sum(spec.numel * itemsize for spec, itemsize in zip(specs, itemsizes))
        step.stats.count_bytes("dense", nbytes + owner.functions.dense_bytes)
        if way == FP16:
            step.stats.count_bytes("carrier", sum(spec.accumulator.itemsize for spec in specs))
        ledger.begin(DENSE_STEP)
        ledger.end(DENSE_STEP)

    def _note_end(self, result: np.ndarray) -> np.int32:
        self.clock.end()
        return np.int32(0)


def _size_of(variable: tf.Variable) -> tuple[tuple[int, ...], int]:
    shape = tuple(variable.shape.as_list())
    return shape, int(np.prod(shape, dtype=np.int64))
