"""``Compression.auto`` in a graph: branches for all ways, and each step's choice among them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import tensorflow as tf

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.plan.fallback import Fallback
from hvd_sparse.plan.policy import Owner
from hvd_sparse.plan.trial import Trial
from hvd_sparse.step.records import Ticket
from hvd_sparse.tensorflow import branches
from hvd_sparse.tensorflow.branches import Branched
from hvd_sparse.tensorflow.host import call_numpy
from hvd_sparse.tensorflow.identity import CallSite, runtime_token
from hvd_sparse.untyped import ProcessSet, Value

WAYS = {"sparse": branches.SPARSE, "dense": branches.DENSE, "fp16": branches.FP16}
DENSE_STEP = "the gradients of a step, which Horovod averages"


class GraphOwner(Owner, Protocol):
    """A compressor, as its policy sees it while a graph is traced and runs."""

    process_set: ProcessSet

    def position_of(self, token: Value) -> int | None:
        """Return whose token it is; None for a variable that is not registered."""

    @property
    def dense_bytes(self) -> int:
        """Bytes a step of the tensors that are never compressed."""


class GraphFallback(Fallback):
    """Policy that goes the way that a trial says, by a branch of the graph.

    One function a step says which way it is, when a first gradient is there, for all gradients that
    Horovod is given at once: they take the same.  On a dense way they are Horovod's own business,
    without a carrier and without a call of Python; but first there is a step that sends all
    residuals along.

    Parameters
    ----------
    trial, sends_all : as in ``Fallback``
    """

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        super().__init__(trial, sends_all=sends_all)
        self._lock = threading.Lock()
        self._built_for: object | None = None
        self._branches: Branched | None = None
        # Nothing is kept in it.  Whatever touches it is run in the order of the program, and so in
        # the same on all ranks.
        with tf.init_scope(), tf.device("cpu"):
            self._order = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvd_sparse_order")

    # -- while a graph is traced ------------------------------------------------------------------

    def branches(self, owner: GraphOwner, site: CallSite) -> Branched:
        """Return the branches of all gradients that Horovod is given at once."""
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
            goes_sparse, is_half = way <= branches.EVERYTHING, tf.equal(way, branches.FP16)
        return Branched(
            way, goes_sparse, is_half, is_timed, self._note_end, site, owner.name, owner.process_set
        )

    # -- at every step ----------------------------------------------------------------------------

    def _begin_step(
        self, owner: GraphOwner, order: np.int64, first: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.int32, np.bool_, np.int64]:
        """Return the way of a step, as a number, and whether it is timed."""
        with self._lock:
            way, is_timed = branches.DENSE, False
            if owner.process_set.included() and owner.collective.world_size > 1:
                way = self._choose(owner, [owner.position_of(token) for token in tokens])
                is_timed = self.trial.is_timed  # else Horovod reduces nothing
        return np.int32(way), np.bool_(is_timed), order

    def _choose(self, owner: GraphOwner, positions: Sequence[int | None]) -> int:
        way = WAYS[self.next_way(owner)]
        known = [position for position in positions if position is not None]
        if way == branches.SPARSE:
            for position in known:
                self.debts.owe(position)
        elif len(known) < len(positions):
            return branches.SPARSE  # where it is refused, on all ranks
        elif self.sends_all or (
            any(map(self.debts.is_owed, known)) and not self._are_paid(owner, known)
        ):
            return branches.EVERYTHING
        else:
            self._count(owner, known, way)
        return way

    def _are_paid(self, owner: GraphOwner, positions: Sequence[int]) -> bool:
        """Tell whether all ranks have seen that all residuals were sent.  Collective.

        Results come in any order here, and a rank that has not seen the last one yet would go
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
        itemsizes = [2 if way == branches.FP16 else spec.accumulator.itemsize for spec in specs]
        nbytes = sum(spec.numel * itemsize for spec, itemsize in zip(specs, itemsizes))
        step.stats.count_bytes("dense", nbytes + owner.dense_bytes)
        if way == branches.FP16:
            step.stats.count_bytes("carrier", sum(spec.accumulator.itemsize for spec in specs))
        ledger.begin(DENSE_STEP)
        ledger.end(DENSE_STEP)

    def note_everything(self, ticket: Ticket) -> None:
        """Learn that a step of a tensor sends its residual along."""
        if ticket.position is not None:
            self.debts.pay(ticket.position, ticket.run)

    def _note_end(self, result: np.ndarray) -> np.int32:
        self.clock.end()
        return np.int32(0)


def _size_of(variable: tf.Variable) -> tuple[tuple[int, ...], int]:
    shape = tuple(variable.shape.as_list())
    return shape, int(np.prod(shape, dtype=np.int64))
