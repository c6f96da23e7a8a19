"""Functions of numpy arrays that a graph calls at every step, to run the compressor's step."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.errors import InvalidOption, UnknownGradient
from hvd_sparse.frontend.compressor import CLOSED
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.kernels.arrays import aligned_empty
from hvd_sparse.plan.policy import Owner, Policy
from hvd_sparse.step.receiver import compressed_again
from hvd_sparse.step.records import BucketRun, StepRun, Ticket, joined
from hvd_sparse.tensorflow.follower import Follower
from hvd_sparse.types import TensorSpec, Value
from hvd_sparse.wire.padding import Padding

logger = logging.getLogger("hvd_sparse")

SPARSE, EVERYTHING, DENSE, FP16 = range(4)
"""The branches of a step: compressed; dense with the residuals; reduced by Horovod alone, in the
residual's dtype; and reduced by Horovod alone, in float16."""
HOST = "/CPU:0"
"""Device of the functions and of the collectives, even if gradients are on a GPU."""
LEAST_WAIT_S, PATIENCE = 5.0, 10.0
"""A step that failed waits for its other tensors: for ``LEAST_WAIT_S`` seconds, or for ``PATIENCE``
times the step's duration so far, whichever is longer. The wait is limited because some traced
tensors may not be in the step, and because all threads of TensorFlow may be waiting."""
NO_SPLITS = np.empty(0, np.int32)
"""Splits of a request that is not an alltoall."""
WATCHED_STEPS = 100
"""Number of steps in which a variable is watched, and copied."""
ENOUGH = 3
"""Number of suspicious steps of one kind before a warning."""
TOLERANCE = 0.02
"""Relative change of an update that rounding and the division by a loss scale may cause."""
VISIBLE = 1e-4
"""Smallest update, relative to the variable, that float32 rounds by at most ``TOLERANCE``."""
UNCHANGED = (
    "%d gradients of %r were reduced, and the variable did not change after each of them: if "
    "they were thrown away, their unsent entries stay in the residual and change the weights "
    "later. Take such gradients from a plain tf.GradientTape, accumulate batches before the tape "
    "reduces them, and skip a step before hvd.DistributedGradientTape's gradient(), not after "
    "it. If the learning rate is 0, ignore this warning"
)
ALTERED = (
    "gradients were multiplied by about %g after they came back from the compressor (seen at "
    "%r); with optimizer= they are updates, so every update is multiplied too. If they are "
    "clipped, leave that out, and clip in the memory, as in "
    "memory={'id': 'adam_correction', 'clip_norm': 1.0}; if a loss scale divides them, give the "
    "compressor grad_scaler="
)


def call_numpy(
    function: Callable[..., Value],
    inputs: Sequence[tf.Tensor],
    dtypes: tf.DType | Sequence[tf.DType],
    *,
    name: str,
) -> Value:
    """Add an operation that calls a function of numpy arrays on the host, and return the
    operation's outputs as tensors."""
    with tf.device(HOST):
        return tf.numpy_function(function, inputs, dtypes, name=name)


@dataclass(eq=False)
class SealedBucket:
    """A bucket (a tensor or group) whose exchange has begun. TensorFlow asks for the results of its
    tensors in several threads. The first thread takes ``lock`` and processes the received messages
    for all. If this fails, every thread raises ``failure``."""

    bucket: BucketRun
    numbers: tuple[int, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_finished: bool = False
    failure: Exception | None = None


class ResultMemory:
    """Memory for the results of tensors. The memory of a tensor's last result is used again if
    nothing refers to it any more, because the first write to new memory costs a page fault for
    every page."""

    def __init__(self) -> None:
        self._vectors: dict[int, np.ndarray] = {}
        self._unused = 0, 0
        """The numbers of references to an array, and to its memory, that nothing else uses."""

    def take(self, position: int, spec: TensorSpec) -> np.ndarray:
        # TensorFlow keeps a reference as long as it reads the memory.
        if position not in self._vectors or self._references(position) != self._unused:
            self._vectors[position] = aligned_empty(spec.numel, spec.accumulator)
            self._unused = self._references(position)
        return self._vectors[position]

    def _references(self, position: int) -> tuple[int, int]:
        vector = self._vectors[position]
        return sys.getrefcount(vector), sys.getrefcount(vector.base)


class GraphFunctions:
    """The functions of one compressor, which TensorFlow may call in any thread. A bucket is a
    tensor or one of Horovod's groups. ``tokens`` maps the ``variables.runtime_token`` of each
    variable to the variable's position among the compressor's variables."""

    def __init__(self, owner: Owner, tokens: Mapping[bytes, int], policy: Policy) -> None:
        self._step = owner.step
        self._ledger = owner.watchdog.ledger
        owner.step.padding = Padding()
        self._tokens, self._policy = tokens, policy
        self._memory = ResultMemory()
        self._numbers = itertools.count()
        self._tickets: dict[int, Ticket] = {}
        self._last_numbers: dict[str, int] = {}
        """By name, the number of each tensor's last ticket."""
        self.traced: set[str] = set()
        """Names of the tensors for which some graph has a call of ``send`` or ``send_dense``."""
        self._counted: StepRun | None = None
        self._counted_calls: list[Mapping[str, int]] = []
        """For the step ``_counted``, each ``beside`` (see ``send``) that was counted."""
        self._is_closed = False
        self.follower: Follower | None = None
        self.recorder: Recorder | None = None
        self.witness: Witness | None = None

    def position(self, token: Value) -> int | None:
        if self._is_closed:
            raise InvalidOption(f"the compressor of this graph {CLOSED}")
        # TensorFlow passes a string as bytes, or eagerly as an array that holds them.
        return self._tokens.get(token if type(token) is bytes else bytes(token.item()))

    def forget(self) -> None:
        """Drop all steps that have not ended. They can never end, because Horovod was restarted."""
        self._tickets.clear()
        self._last_numbers.clear()
        self._counted = None

    def close(self) -> None:
        """Drop the last step and the objects that these functions read: the optimizer, and the
        variable that ``Witness`` watches. Graphs that call them then raise InvalidOption."""
        self._is_closed = True
        self.forget()
        self._memory = ResultMemory()
        self.follower = self.recorder = self.witness = None

    def send(
        self,
        gradient: np.ndarray,
        token: Value,
        scale: Value,
        way: Value = SPARSE,
        *,
        beside: Mapping[str, int] | None = None,
        is_joined: bool = False,
    ) -> tuple[Value, ...]:
        """Compress a tensor. Return a small array (the carrier) for Horovod to reduce in its place,
        and the number (int64) that identifies the tensor in later calls. Unless ``is_joined``, also
        begin the exchange, and return the two results of ``seal``.

        gradient : flat, in TensorFlow's memory
        token : the ``runtime_token`` of the tensor's variable
        scale : the loss scale; with ``optimizer=``, the vector of ``Follower.beside``
        way : branch of the step, ``SPARSE`` or ``EVERYTHING``
        beside : by name, the bytes of the tensors that Horovod reduces in the same call, and for
            which the graph has no call of a function
        is_joined : the tensor is in a group, for which ``seal`` is called later
        """
        came_s = time.perf_counter()
        position = self.position(token)
        everything = bool(way == EVERYTHING)
        if position is None:
            wire, ticket = self._poison(gradient.size, gradient.dtype, has_carrier=True)
        else:
            if self.witness is not None and self.witness.position == position:
                self.witness.look()
            # TensorFlow does not write to the gradient's memory while this array refers to it.
            wire, ticket = self._step.compress(
                position,
                gradient,
                self._noted(scale),
                everything=everything,
                is_joined=is_joined,
            )
            if position in ticket.bucket.sending:
                ticket.out = self._memory.take(position, ticket.state.spec)
        number = self._keep(ticket, beside)
        if position is not None:
            self._policy.took(position, ticket, came_s, everything=everything)
        sent = wire, np.int64(number)
        return sent if is_joined else sent + self.seal(number)

    def send_dense(
        self, numel: int, beside: Mapping[str, int], first: np.ndarray, token: Value, scale: Value
    ) -> np.int64:
        """Let a tensor of ``numel`` entries that is never compressed enter the step, and return its
        number. ``first`` is the first entry of its gradient, so that the call waits for it;
        ``beside`` is as in ``send``."""
        position = self.position(token)
        if position is None:
            _, ticket = self._poison(numel, first.dtype, has_carrier=False)
        else:
            nbytes = numel * first.itemsize
            ticket = self._step.enter_dense(position, self._noted(scale), nbytes)
        return np.int64(self._keep(ticket, beside))

    def _poison(
        self, numel: int, dtype: np.dtype, *, has_carrier: bool
    ) -> tuple[np.ndarray, Ticket]:
        error = UnknownGradient(
            f"a gradient of {numel} entries belongs to no registered variable: give the "
            "compressor all variables that the tape or optimizer has"
        )
        key = f"of {numel} entries"
        return self._step.poison(error, key, dtype, has_carrier=has_carrier)

    def _noted(self, scale: Value) -> float:
        return float(scale) if self.follower is None else self.follower.note(scale)

    def _keep(self, ticket: Ticket, beside: Mapping[str, int] | None) -> int:
        """Store a ticket until ``receive`` is called with the number that this method returns."""
        if ticket.run is not self._counted:  # the step's first
            self._counted_calls, self._counted = [], ticket.run
            # TensorFlow calls no ``receive`` for tensors that a failed step has not reached.
            for old, each in list(self._tickets.items()):
                if each.run.failure is not None:
                    self._tickets.pop(old, None)
        if beside and not any(each is beside for each in self._counted_calls):
            self._counted_calls.append(beside)
            self._step.stats.count_bytes("dense", sum(beside.values()))
        last = self._tickets.get(self._last_numbers.get(ticket.key, -1))
        if last is not None and last.run is not ticket.run and last.run.failure is None:
            self._abandon(last)
        self._ledger.begin(ticket.key)
        number = self._last_numbers[ticket.key] = next(self._numbers)
        self._tickets[number] = ticket
        if self.recorder is not None and len(ticket.run.entered) >= len(self.traced):
            self.recorder.submitted(ticket.run)
        return number

    def _abandon(self, ticket: Ticket) -> None:
        """Fail the step of a tensor that has entered another step before ``receive`` was called.
        Usually, an error of the program has ended the step in TensorFlow. Of tensors with finite
        results, keep the step, because the program may have applied them, as those of another
        tape."""
        run, transactions = ticket.run, self._step.transactions
        for each in list(self._tickets.values()):
            if each.run is run:
                self._ledger.end(each.key)
        if run.is_finite:
            transactions.keep(run, run.completed)
        transactions.fail(run, compressed_again(repr(ticket.key)))

    def seal(self, *numbers: int) -> tuple[np.ndarray, np.ndarray]:
        """Begin the exchange of a bucket, whose tensors have these numbers. Return the array and
        the splits of the exchange's first collective, as ``advance`` does for later ones."""
        all_numbers = tuple(map(int, numbers))
        tickets = list(map(self._tickets.__getitem__, all_numbers))
        bucket = joined(tickets)
        self._step.converse(bucket, tickets[0].run)
        sealed = SealedBucket(bucket, all_numbers)
        for ticket in tickets:
            ticket.extra = sealed
        return self.advance(numbers[0], None)

    def advance(
        self, number: int, received: Value, dtype: np.dtype | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pass the result of the previous collective to the exchange. Return the array of the next
        collective, and its splits (int32): for an alltoall, the length of each rank's part of the
        array; otherwise empty. The graph declares ``dtype`` for the array; after a failure, the
        exchange may return another."""
        sealed: Value = self._tickets[int(number)].extra
        request = sealed.bucket.advance(received)
        assert request is not None  # the graph has as many calls as the exchange has phases
        splits = NO_SPLITS if request.splits is None else request.splits
        array = request.array if dtype is None else request.array.astype(dtype, copy=False)
        return array, splits.astype(np.int32, copy=False)

    def receive(
        self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return a tensor's reduced gradient, flat. ``reduced`` is the result of Horovod's
        allreduce of the carrier, or of the gradient if the tensor is never compressed. ``received``
        is the result of the exchange's last collective. Undo a failed step, and raise its error."""
        ticket = self._tickets.pop(int(number))
        run, sealed = ticket.run, ticket.extra
        # The exchange is over.
        run.received.update([int(number)] if sealed is None else sealed.numbers)
        # Return at once, because another thread waits for this exchange before it raises an error.
        if run.is_raising and ticket.position is not None:
            self._ledger.end(ticket.key)
            spec = self._step.specs[ticket.position]
            return np.zeros(spec.numel, spec.accumulator)
        try:
            if run.failure is not None:
                raise run.failure
            if sealed is None:  # the tensor is never compressed
                if ticket.error is not None:
                    raise ticket.error
                result = self._step.finish_dense(ticket, reduced, parameter)
                self._ledger.end(ticket.key)
                return result
            # Check the carrier first, because its error explains errors in the message.
            self._step.report(ticket, reduced)
            with sealed.lock:  # the first thread does this for all tensors
                if not sealed.is_finished:
                    sealed.is_finished = True
                    try:
                        is_over = sealed.bucket.advance(received) is None
                        assert is_over, "an exchange has more collectives than its phases name"
                        self._step.receive(sealed.bucket)
                    except Exception as error:  # every tensor raises it in its own thread
                        sealed.failure = error
            if sealed.failure is not None:
                raise sealed.failure
            result = self._step.result(ticket, reduced, parameter)
        except Exception as error:
            self._take_back(run, error)
            raise
        self._ledger.end(ticket.key)
        if self.witness is not None and self.witness.position == ticket.position:
            self.witness.note(result, ticket.scale)
        self._policy.arrived()
        return result

    def _take_back(self, run: StepRun, error: Exception) -> None:
        """Undo a failed step, after waiting until other threads have run its exchanges. Without the
        wait, TensorFlow would get the error earlier and drop operations that have not begun. Other
        ranks would wait for these operations."""
        self._ledger.clear()
        if is_elastic():  # Horovod's elastic run does not print errors that it does not know
            logger.error("%s: %s", type(error).__name__, error)
        self._policy.fail()
        run.is_raising, run.failure = True, run.failure or error
        awaited, now_s = self.traced, time.monotonic()
        if self._policy.is_dense:
            awaited = awaited - {self._step.keys[position] for position in self._step.compressed}
        deadline_s = now_s + max(LEAST_WAIT_S, PATIENCE * (now_s - run.began_s))
        while len(run.received) < len(awaited) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        self._step.transactions.fail(run, error)
        run.is_raising = False


class Witness:
    """Detects programs with a gradient tape that do not apply the reduced gradients, or that change
    them before. It compares the changes of the smallest compressed variable with the variable's
    gradients. ``factors`` returns the learning rate, and the rate times weight decay; it is None
    without ``optimizer=``."""

    def __init__(
        self,
        variables: Sequence[Value],
        specs: dict[int, TensorSpec],
        factors: Callable[[], tuple[float, float]] | None,
    ) -> None:
        self.position = min(specs, key=lambda i: specs[i].numel, default=-1)
        if specs:
            self._key, self._variable = specs[self.position].key, variables[self.position]
        self._factors = factors
        self._before: tuple[np.ndarray, int, list[float]] | None = None
        self._steps = self._unchanged = self._altered = 0

    def note(self, result: np.ndarray, scale: float) -> None:
        """Store the variable's value, and with ``optimizer=`` the change that the program should
        make to one of its entries. ``result / scale`` is the update without the loss scale."""
        if not result.any() or not np.isfinite(result).all():
            return
        index, expected = int(np.abs(result).argmax()), []
        value = np.array(self._variable).reshape(-1)
        if self._factors is not None:
            factor, decay = self._factors()
            expected = [-factor * result[index] / scale]
            expected.append(expected[0] - decay * value[index])  # if Keras decays the variable
        self._before = value, index, expected

    def look(self) -> None:
        """Compare the variable with the values that ``note`` stored, to see whether the program has
        applied the last result. Log a warning after ``ENOUGH`` results that were not applied, or
        ``ENOUGH`` results that were changed before they were applied."""
        if self._before is None:
            return
        (value, index, expected), self._before = self._before, None
        now = np.array(self._variable).reshape(-1)
        self._steps += 1
        if np.array_equal(value, now):
            self._unchanged += 1
        elif expected and abs(expected[0]) > VISIBLE * abs(value[index]):
            found = float(now[index]) - float(value[index])
            self._altered += all(abs(found - e) > TOLERANCE * abs(e) for e in expected)
            if self._altered >= ENOUGH:
                logger.warning(ALTERED, found / expected[0], self._key)
        if self._unchanged >= ENOUGH:
            logger.warning(UNCHANGED, self._unchanged, self._key)
        if max(self._altered, self._unchanged) >= ENOUGH or self._steps >= WATCHED_STEPS:
            self.position = -1
