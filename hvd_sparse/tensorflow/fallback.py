"""The compressor that measures whether it is worth while, and steps aside where it is not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_sparse.autotune.fallback import Debts, StepClock, SteppingAside
from hvd_sparse.autotune.trial import Trial
from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.tensorflow import branches as ways
from hvd_sparse.tensorflow.branches import ManyWays, OneWay
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.graph_functions import Traffic, as_bytes
from hvd_sparse.tensorflow.identity import CallSite, runtime_token

CODES = {"sparse": ways.SPARSE, "dense": ways.DENSE, "fp16": ways.FP16}
DENSE_STEP = "the gradients of a step, which Horovod averages"


class AutoTraffic(Traffic):
    """Says of every residual when it is sent, and when a step has failed."""

    def __init__(self, debts: Debts, clock: StepClock, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._debts = debts
        self._clock = clock

    def take(
        self,
        gradient: np.ndarray,
        token: Any,
        scale: Any,
        code: Any = ways.SPARSE,
        *,
        is_joined: bool = True,
    ) -> tuple[np.ndarray, np.int64]:
        """As for a compressor with one way.

        code : of the step's way
        """
        everything = int(code) == ways.EVERYTHING
        wire, number = super().take(gradient, token, scale, everything, is_joined=is_joined)
        ticket = self._tickets[int(number)]
        if everything and ticket.position is not None:
            self._debts.pay(ticket.position, ticket.run)
        return wire, number

    def receive(
        self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """As for a compressor with one way."""
        try:
            return super().receive(number, reduced, received, parameter)
        except Exception:
            self._clock.fail()
            raise


class AutoCompressor(SteppingAside, TensorflowCompressor):
    """A ``TensorflowCompressor`` whose steps go the way that a trial says.  Made by
    ``Compression.auto``.

    One function a step says which way it is, when a first gradient is there, for all gradients that
    Horovod is given at once: they take the same.  On a dense way they are Horovod's own business,
    without a carrier and without a call of Python; but first there is a step that sends all
    residuals along.
    """

    def __init__(
        self, params: Any, configuration: Any, process_set: Any, grad_scaler: Any, trial: Trial
    ) -> None:
        super().__init__(params, configuration, process_set, grad_scaler)
        self._begin_trial(trial)
        self._lock = threading.Lock()
        self._deciding: tuple[object | None, OneWay | None] = (None, None)
        # Nothing is kept in it.  Whatever touches it is run in the order of the program, and so in
        # the same on all ranks.
        with tf.init_scope(), tf.device("cpu"):
            self._order = tf.Variable(0, trainable=False, dtype=tf.int64, name="hvd_sparse_order")

    def _make_traffic(self, tokens: dict[bytes, int]) -> AutoTraffic:
        return AutoTraffic(
            self._debts, self._clock, self.step, self.collective, tokens, self.watchdog.ledger
        )

    # -- while a graph is traced ------------------------------------------------------------------

    def _ways_of(self, site: CallSite) -> OneWay:
        """Those of all gradients that Horovod is given at once."""
        if self._deciding[0] is None or self._deciding[0] is not site.gradients:
            self._deciding = (site.gradients, self._build(site))
        assert self._deciding[1] is not None
        return self._deciding[1]

    def _build(self, site: CallSite) -> OneWay:
        """Build what tells a step's way, outside of the branches that Horovod reduces the gradients
        in.

        It waits for one gradient: the last in the list, which most backward passes give first.
        """
        graph = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
        if graph is None or site.gradients is None or site.variables is None:
            raise UnsupportedInput(
                "auto needs to know which gradients make a step: give it to "
                "hvd.DistributedGradientTape or "
                "hvd.DistributedOptimizer, under TensorFlow 2's control flow"
            )
        pairs = [(g, v) for g, v in zip(site.gradients, site.variables) if isinstance(g, tf.Tensor)]
        with graph.as_default():
            tokens = [
                runtime_token(v) for _, v in pairs if self.configuration.is_sparse(*_size_of(v))
            ]
            first = tf.reshape(pairs[-1][0], [-1])[:1]
            order = self._order.read_value()
            inputs = [order, first, tf.stack(tokens)]
            code, is_timed, order = tf.numpy_function(
                self._begin_step, inputs, [tf.int32, tf.bool, tf.int64], name="hvd_sparse_way"
            )
            for told in (code, is_timed, order):
                told.set_shape([])
            self._order.assign(order)
            is_sparse, is_half = code <= ways.EVERYTHING, tf.equal(code, ways.FP16)
        return ManyWays(
            code, is_sparse, is_half, is_timed, self._note_end, site, self.name, self.process_set
        )

    # -- at every step ----------------------------------------------------------------------------

    def _begin_step(
        self, order: np.int64, first: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.int32, np.bool_, np.int64]:
        """The way of a step, as a number, and whether it is timed."""
        with self._lock:
            code, is_timed = ways.DENSE, False
            if (
                self.process_set.included() and self.collective.world_size > 1
            ):  # else Horovod reduces nothing
                code = self._code([self._traffic.position(as_bytes(token)) for token in tokens])
                is_timed = self._trial.is_timed
        return np.int32(code), np.bool_(is_timed), order

    def _code(self, positions: Sequence[int | None]) -> int:
        code = CODES[self._next_way()]
        known = [position for position in positions if position is not None]
        if code == ways.SPARSE:
            for position in known:
                self._debts.owe(position)
        elif len(known) < len(positions):
            return ways.SPARSE  # where it is refused, on all ranks
        elif any(self._debts.is_owed(position) for position in known) and not self._are_paid(known):
            return ways.EVERYTHING
        else:
            self._count(known, code)
        return code

    def _are_paid(self, positions: Sequence[int]) -> bool:
        """Whether all ranks have seen that all residuals were sent.  Collective: results come in
        any order here, and a rank that has not seen the last one yet would go another way than the
        others."""
        owing = [position for position in positions if self._debts.is_owed(position)]
        mine = all(self._debts.is_paid(position) for position in owing)
        are_paid = bool(self._agree(np.array([float(mine)])).all())
        if are_paid:
            for position in owing:
                self._debts.settle(position)
        return are_paid

    def _count(self, positions: Sequence[int], code: int) -> None:
        """What a dense way hands to Horovod; nobody will tell of it."""
        specs = [self.step.specs[position] for position in positions]
        itemsizes = [2 if code == ways.FP16 else spec.accumulator.itemsize for spec in specs]
        nbytes = sum(spec.numel * itemsize for spec, itemsize in zip(specs, itemsizes))
        self.step.stats.count_bytes("dense", nbytes + self._traffic.dense_bytes)
        if code == ways.FP16:
            self.step.stats.count_bytes("carrier", sum(spec.accumulator.itemsize for spec in specs))
        self.watchdog.ledger.begin(DENSE_STEP)
        self.watchdog.ledger.end(DENSE_STEP)

    def _note_end(self, result: np.ndarray) -> np.int32:
        self._clock.end()
        return np.int32(0)


def _size_of(variable: Any) -> tuple[tuple[int, ...], int]:
    shape = tuple(variable.shape.as_list())
    return shape, int(np.prod(shape, dtype=np.int64))
