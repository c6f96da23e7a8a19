"""Adds operations to a graph: the exchange of messages, and for ``Compression.auto`` a branch for
each way of sending gradients (sparse, dense, or dense in float16)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.horovod_tensorflow import GRAPH_PHASES, hvd
from hvd_sparse.composition import PLANNED
from hvd_sparse.errors import InvalidOption, UnsupportedInput
from hvd_sparse.plan.policy import Fallback, Owner, Trial
from hvd_sparse.step.buckets import check_merged
from hvd_sparse.step.records import Ticket
from hvd_sparse.tensorflow.graph_functions import (
    DENSE,
    EVERYTHING,
    FP16,
    HOST,
    SPARSE,
    GraphFunctions,
    call_numpy,
)
from hvd_sparse.tensorflow.variables import CallSite, runtime_token
from hvd_sparse.types import ProcessSet, TensorSpec, Value

WAYS = {"sparse": SPARSE, "dense": DENSE, "fp16": FP16}
DENSE_STEP = "the gradients of a step, which Horovod averages"


class GraphOwner(Owner, Protocol):
    """The attributes of a TensorFlow compressor that this module uses."""

    process_set: ProcessSet
    functions: GraphFunctions


class GraphCall:
    """A call of Horovod, while a graph is traced.

    With ``Compression.auto``, tensors of the graph determine the branch ``way`` of a step, and thus
    how its gradients are sent. All ranks take this branch (``graph_functions`` lists the branches),
    and submit only its collectives. In a timed step (``is_timed``), the graph calls ``note_end``
    with each result, to learn when the step ended.

    site : describes the call, as its first gradient found it
    beside : by name, the bytes of the tensors for which the graph has no call of a function. The
        dict is complete when the call has been traced
    left : number of the call's gradients that are still to be compressed; below 0 without a list
    """

    way: tf.Tensor | None = None
    is_sparse: tf.Tensor
    is_half: tf.Tensor
    is_timed: tf.Tensor
    note_end: Callable[[np.ndarray], np.int32]

    def __init__(self, owner: GraphOwner, site: CallSite) -> None:
        self.owner, self.site = owner, site
        self.beside: dict[str, int] = {}
        passed_by = type(None), tf.IndexedSlices  # Horovod compresses all others
        self.left = sum(not isinstance(each, passed_by) for each in site.gradients or ())
        self._together: object | None = None

    def bucket(self, together: object | None, dtype: tf.DType) -> GraphBucket:
        """Return the message of a gradient. ``together`` are the tensors of its group, or None."""
        if together is None or together is not self._together:
            self._together, self._bucket = together, GraphBucket(self, together is not None, dtype)
        return self._bucket

    def if_sparse(self, build: Callable[[], Value], otherwise: Callable[[], Value]) -> Value:
        return build() if self.way is None else tf.cond(self.is_sparse, build, otherwise)

    def aside(self, flat: tf.Tensor, moved: Sequence[tf.DType]) -> list[tf.Tensor]:
        """Return the outputs of a dense branch: the array for Horovod to reduce, and placeholders
        for the tensor's number and message. The placeholders are needed because all branches must
        have outputs of the same dtypes, and the sparse branch returns those of
        ``GraphFunctions.send``."""
        # Horovod's operation has a single dtype, so a float16 gradient has an allreduce of its own,
        # and one entry stands for the gradient here.
        wire = tf.cond(self.is_half, lambda: tf.ones([1], flat.dtype), lambda: flat)
        return [wire, tf.constant(-1, tf.int64), *(tf.zeros([0], dtype) for dtype in moved)]

    def dense(self, flat: tf.Tensor, reduced: tf.Tensor) -> tf.Tensor:
        """Return the reduced gradient in a dense branch: ``reduced``, the array of ``aside`` after
        Horovod's allreduce, or in the float16 branch the result of an allreduce of ``flat``."""

        def half() -> tf.Tensor:
            prescale, postscale = self.site.scales
            summed = hvd.allreduce(
                tf.cast(flat, tf.float16),
                op=self.site.op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                name=f"HorovodAllreduce_hvd_sparse.{self.owner.name}.fp16",
                process_set=self.owner.process_set,
            )
            return tf.cast(summed, flat.dtype)

        return tf.cond(self.is_half, half, lambda: reduced)

    def timed(self, result: tf.Tensor) -> tf.Tensor:
        """Return a branch's result. In a timed step, first call ``note_end``. Every branch makes
        this call, so that the time of the call is part of every branch's time."""
        if self.way is None:
            return result

        def noted() -> tf.Tensor:
            end = call_numpy(self.note_end, [result[:1]], tf.int32, name="hvd_sparse_end")
            with tf.control_dependencies([end]):
                return tf.identity(result)

        return tf.cond(self.is_timed, noted, lambda: result)


class GraphBucket:
    """The tensors of one message, while a graph is traced. A single tensor's operations that build
    and exchange the message are added at once. Those of a group are added after all its tensors,
    when Horovod requests the first result."""

    def __init__(self, call: GraphCall, is_group: bool, dtype: tf.DType) -> None:
        self._call, self._is_group, self._dtype = call, is_group, dtype
        owner = self._owner = call.owner
        self._phases = owner.step.exchange.phases(
            owner.configuration.selector, owner.collective.world_size
        )
        self._numbers: list[tf.Tensor] = []
        self._specs: list[TensorSpec] = []
        self._gathered: tf.Tensor | None = None

    def send(
        self, spec: TensorSpec, flat: tf.Tensor, token: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Add a tensor to the message. Return the array that Horovod reduces in place of the
        gradient, and the number by which ``receive`` finds the tensor."""
        configuration = self._owner.configuration
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
        function = partial(self._owner.functions.send, beside=self._call.beside)
        moved = self._moved(0)
        if self._is_group:
            function, moved = partial(function, is_joined=True), []
        inputs = [flat, token, scale]
        if self._call.way is not None:
            inputs.append(self._call.way)
        dtypes = [flat.dtype, tf.int64, *moved]

        def build() -> Value:
            return list(call_numpy(function, inputs, dtypes, name="hvd_sparse_send"))

        wire, number, *first = self._call.if_sparse(build, lambda: self._call.aside(flat, moved))
        wire.set_shape([None])
        self._numbers.append(number)
        if first:
            self._gathered = self._exchange(*first)
        return wire, number

    def receive(
        self, number: tf.Tensor, flat: tf.Tensor, reduced: tf.Tensor, parameter: tf.Tensor
    ) -> tf.Tensor:
        """Return the reduced gradient of the tensor ``number``, flat. Afterwards, no tensor can be
        added to the message."""
        if self._gathered is None:
            self._gathered = self._exchange()
        # Pass all inputs to one function: Horovod's branches ignore control dependencies.
        inputs = [number, reduced, self._gathered, parameter]

        def build() -> tf.Tensor:
            receive = self._owner.functions.receive
            return call_numpy(receive, inputs, flat.dtype, name="hvd_sparse_receive")

        call = self._call
        return call.timed(call.if_sparse(build, lambda: call.dense(flat, reduced)))

    def _exchange(self, *first: tf.Tensor) -> tf.Tensor:
        def build() -> tf.Tensor:
            seal = self._owner.functions.seal
            array, splits = first or call_numpy(
                seal, self._numbers, self._moved(0), name="hvd_sparse_seal"
            )
            # Messages, like carriers, get names from the graph's scopes. So each message has a
            # name of its own, the same on all ranks, even if a rank cannot identify the gradient.
            array = self._phase(0, array, splits)
            for phase in range(1, len(self._phases)):
                types, inputs = self._moved(phase), [self._numbers[0], array]
                advance = partial(self._owner.functions.advance, dtype=types[0].as_numpy_dtype)
                moved = call_numpy(advance, inputs, types, name="hvd_sparse_advance")
                array = self._phase(phase, *moved)
            return array

        received = self._moved(len(self._phases) - 1)[0]
        return self._call.if_sparse(build, lambda: tf.zeros([0], received))

    def _phase(self, phase: int, array: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
        name = f"hvd_sparse.{self._owner.name}" + (f".{phase}" if phase else "")
        array.set_shape([None])
        splits.set_shape([None])
        with tf.device(HOST):
            return GRAPH_PHASES[self._phases[phase]](array, splits, name, self._owner.process_set)

    def _moved(self, phase: int) -> list[tf.DType]:
        return [self._dtype if self._phases[phase] == "allreduce" else tf.uint8, tf.int32]


class GraphFallback(Fallback):
    """The policy of ``Compression.auto`` in graphs: it decides in each step how gradients are sent.
    Each way is a branch of the graph, and one operation, which runs Python code, chooses the branch
    for all gradients of a call of Horovod. In the dense branches, Horovod reduces the gradients,
    and further Python code runs only in measured steps."""

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        super().__init__(trial, sends_all=sends_all)
        self._lock = threading.Lock()
        # Operations on this variable run in program order, which is the same on all ranks.
        with tf.init_scope(), tf.device("cpu"):
            self._order = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvd_sparse_order")

    def add_branches(self, call: GraphCall) -> None:
        """Add the operation that chooses a step's branch, outside of the ``tf.cond`` in which
        Horovod calls the compressor. The operation waits for the last gradient in the list. Most
        backward passes compute this gradient first, and a step is timed from its first gradient."""
        owner, site = call.owner, call.site
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
            tokens = [
                runtime_token(v)
                for _, v in pairs
                if is_sparse(tuple(v.shape.as_list()), v.shape.num_elements())
            ]
            first = tf.reshape(pairs[-1][0], [-1])[:1]
            inputs = [self._order.read_value(), first, tf.stack(tokens)]
            dtypes = [tf.int32, tf.bool, tf.int64]
            begin = partial(self._begin_step, owner, call.beside)
            way, is_timed, order = call_numpy(begin, inputs, dtypes, name="hvd_sparse_way")
            for told in (way, is_timed, order):
                told.set_shape([])
            self._order.assign(order)
            call.way, call.is_timed, call.note_end = way, is_timed, self._note_end
            call.is_sparse, call.is_half = way <= EVERYTHING, tf.equal(way, FP16)

    def _begin_step(
        self,
        owner: GraphOwner,
        beside: Mapping[str, int],
        order: np.int64,
        first: np.ndarray,
        tokens: np.ndarray,
    ) -> tuple[np.int32, np.bool_, np.int64]:
        with self._lock:
            way, is_timed = DENSE, False
            # In all other cases, Horovod reduces nothing.
            if owner.process_set.included() and owner.collective.world_size > 1:
                positions = [owner.functions.position(token) for token in tokens]
                way = self._choose(owner, positions, sum(beside.values()))
                is_timed = self.trial.is_timed
            self.is_dense = way > EVERYTHING
        return np.int32(way), np.bool_(is_timed), order

    def _choose(self, owner: Owner, positions: Sequence[int | None], dense_bytes: int) -> int:
        way = WAYS[self.next_way(owner)]
        known = [position for position in positions if position is not None]
        if way == SPARSE:
            self.owed.update(dict.fromkeys(known))
        elif len(known) < len(positions):
            return SPARSE  # in this branch all ranks raise an error for the unknown variable
        elif self.sends_all or (
            not self.owed.keys().isdisjoint(known) and not self._are_paid(owner, known)
        ):
            return EVERYTHING
        else:
            self._count(owner, known, way, dense_bytes)
        return way

    def _are_paid(self, owner: Owner, positions: Sequence[int]) -> bool:
        """Return whether every rank has sent the whole residuals of these tensors. Collective."""
        owing = [position for position in positions if position in self.owed]
        are_paid = all(self.agree(owner, all(map(self.is_paid, owing))))
        if are_paid:
            for position in owing:
                self.owed.pop(position, None)
        return are_paid

    def _count(self, owner: Owner, positions: Sequence[int], way: int, nbytes: int) -> None:
        """Count a dense step. ``nbytes`` are the bytes of the tensors that are never compressed."""
        stats, ledger = owner.step.stats, owner.watchdog.ledger
        for spec in (owner.step.specs[position] for position in positions):
            nbytes += spec.numel * (2 if way == FP16 else spec.accumulator.itemsize)
            if way == FP16:
                stats.count_bytes("carrier", spec.accumulator.itemsize)
        stats.count_bytes("dense", nbytes)
        ledger.begin(DENSE_STEP)
        ledger.end(DENSE_STEP)

    def took(self, position: int, ticket: Ticket, came_s: float, *, everything: bool) -> None:
        if everything:
            self.owed[position] = ticket.run

    def arrived(self) -> None:
        """Do nothing: in timed steps, every branch calls ``_note_end``, which ends the step."""

    def _note_end(self, result: np.ndarray) -> np.int32:
        self.clock.end()
        return np.int32(0)
