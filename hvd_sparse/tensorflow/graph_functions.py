"""The functions that a graph calls at every step: numpy in, numpy out, on the step object."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from hvd_sparse.collectives.contract import AllToAll, Collective, Request
from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.errors import UnknownGradient
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.plan.fallback import Fallback
from hvd_sparse.plan.measuring import GraphPlannedGroups
from hvd_sparse.step.records import BucketRun, StepRun, Ticket, joined
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.optimizer import Follower
from hvd_sparse.tensorflow.witness import Witness
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Value
from hvd_sparse.watch.ledger import Ledger
from hvd_sparse.wire.padding import Padding

logger = logging.getLogger("hvd_sparse")

SPARSE, EVERYTHING, DENSE, FP16 = range(4)
"""A step's ways: as the method says; all that was kept back along with it; as Horovod does it, as
float32 or float16."""
HOST = "/CPU:0"
"""Where numpy's functions and our collectives run, whatever device the gradients are on."""
LONGEST_WAIT_S = 5.0
"""Seconds for the other tensors of a step that failed; a graph that leaves out some of the traced
ones waits this long for nothing."""
NO_SPLITS = np.empty(0, np.int32)
"""Splits of an array that goes to all ranks alike."""


def call_numpy(
    function: Callable[..., Value],
    inputs: Sequence[tf.Tensor],
    dtypes: tf.DType | Sequence[tf.DType],
    *,
    name: str,
) -> Value:
    """Return an operation that calls a function of numpy arrays, pinned to the host."""
    with tf.device(HOST):
        return tf.numpy_function(function, inputs, dtypes, name=name)


@dataclass(eq=False)
class BucketUnderWay:
    """A bucket whose exchange has begun."""

    conversation: Conversation
    bucket: BucketRun
    numbers: tuple[int, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that processes the last phase's data."""
    is_finished: bool = False
    failure: Exception | None = None


class GraphFunctions:
    """The two halves of a tensor's step, called by TensorFlow's executor in any thread.

    Every tensor is a bucket of its own, unless Horovod hands several over as a group. Horovod
    reduces each gradient, or group, inside a branch of its own, and no tensor can pass from one
    branch's graph to another's.

    Parameters
    ----------
    tokens : positions of variables, by their ``identity.runtime_token``
    """

    def __init__(
        self,
        step: Step,
        collective: Collective,
        tokens: Mapping[bytes, int],
        ledger: Ledger,
        policy: Fallback | None = None,
    ) -> None:
        self._step = step
        self._collective = collective
        self._padding = Padding(step.stats.count_padding)
        self._tokens = tokens
        self._ledger = ledger
        self._policy = policy
        self._place: tuple[int, int] | None = None
        self._numbers = itertools.count()
        self._tickets: dict[int, Ticket] = {}
        self._under_way: dict[int, BucketUnderWay] = {}
        self._dense_bytes: dict[str, int] = {}
        self.dense_bytes = 0
        """Bytes per step of the tensors that Horovod reduces dense."""
        self._traced: set[str] = set()
        self._counted: StepRun | None = None
        self.follower: Follower | None = None
        self.recorder: Recorder | None = None
        self.planner: GraphPlannedGroups | None = None
        self.witness: Witness | None = None

    def note_dense(self, spec: TensorSpec) -> None:
        """Count a tensor that Horovod reduces dense at every step; called at tracing."""
        self._dense_bytes[spec.key] = spec.numel * spec.accumulator.itemsize
        self.dense_bytes = sum(self._dense_bytes.values())

    def note_sparse(self, spec: TensorSpec) -> None:
        """Note a tensor that is sent at every step of some graph; called at tracing."""
        self._traced.add(spec.key)

    def position(self, token: Value) -> int | None:
        """Return a variable's position; None if it is not registered."""
        return self._tokens.get(token if type(token) is bytes else _as_bytes(token))

    def forget(self) -> None:
        """Drop everything in progress, because Horovod was restarted and no exchange will end."""
        self._tickets.clear()
        self._under_way.clear()
        self._place = None

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self, gradient: np.ndarray, token: Value, scale: Value, way: Value = SPARSE
    ) -> tuple[np.ndarray, np.int64, np.ndarray, np.ndarray]:
        """Combine ``take`` and ``seal`` for a tensor outside groups."""
        wire, number = self.take(gradient, token, scale, way, is_joined=False)
        return wire, number, *self.seal(number)

    def take(
        self,
        gradient: np.ndarray,
        token: Value,
        scale: Value,
        way: Value = SPARSE,
        *,
        is_joined: bool = True,
    ) -> tuple[np.ndarray, np.int64]:
        """Return the array to allreduce for a tensor, and the tensor's number.

        Parameters
        ----------
        gradient : flat; only read, as it is TensorFlow's own memory
        token : of its variable
        scale : of the loss, followed by the hyper-parameters of a handed-over optimizer
        way : of the step, as ``branches`` numbers them
        is_joined : the tensor travels with others
        """
        if self._place is None:
            self._place = self._collective.rank, self._collective.world_size
        rank, world_size = self._place
        came_s = 0.0 if self.planner is None else time.perf_counter()
        position = self.position(token)
        everything = bool(way == EVERYTHING)
        if position is None:
            error = UnknownGradient(
                f"a gradient of {gradient.size} entries belongs to no registered variable: "
                "give the compressor all variables that the tape or optimizer has"
            )
            wire, ticket = self._step.poison(
                error, f"of {gradient.size} entries", gradient.dtype, rank, world_size
            )
        else:
            if self.witness is not None:
                self.witness.look(position)
            wire, ticket = self._step.compress(
                position,
                gradient,
                rank,
                world_size,
                self._note(scale),
                everything=everything,
                is_joined=is_joined,
            )
        self._ledger.begin(ticket.key)
        number = next(self._numbers)
        self._tickets[number] = ticket
        if ticket.run is not self._counted:  # the step's first
            self._counted = ticket.run
            if self.dense_bytes:
                self._step.stats.count_bytes("dense", self.dense_bytes)
        if self.planner is not None and position is not None:
            self.planner.took(position, ticket, came_s)
        if everything and self._policy is not None and position is not None:
            self._policy.debts.pay(position, ticket.run)
        if self.recorder is not None and len(ticket.run.entered) >= len(self._traced):
            self.recorder.submitted(ticket.run)
        return wire, np.int64(number)

    def seal(self, *numbers: np.int64) -> tuple[np.ndarray, np.ndarray]:
        """Return the first array that the exchange of these tensors moves, with splits.

        All ranks have them in the same order.
        """
        all_numbers = tuple(int(number) for number in numbers)
        tickets = [self._tickets[number] for number in all_numbers]
        bucket, spans = joined(tickets), self._step.spans
        if spans.is_heard:
            bucket.began_s = spans.now()
        assert self._place is not None
        conversation = self._step.converse(bucket, tickets[0].run, *self._place)
        conversation = self._padding.carry(conversation, bucket.index)
        under_way = BucketUnderWay(conversation, bucket, all_numbers)
        self._under_way.update(dict.fromkeys(all_numbers, under_way))
        return _moved(next(conversation))

    def advance(self, number: np.int64, received: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next array that the exchange moves, with splits."""
        return _moved(self._under_way[int(number)].conversation.send(received))

    # -- receiving --------------------------------------------------------------------------------

    def receive(
        self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the reduced gradient, flat; any error is raised after the step is taken back."""
        ticket, under_way = self._tickets.pop(int(number)), self._under_way.pop(int(number))
        run = ticket.run
        run.received.update(under_way.numbers)  # all of its phases are over
        # Another thread waits for this exchange, to raise the step's failure: zeros, which nobody
        # will see, let it go on at once.
        if run.is_raising and ticket.position is not None:
            spec = self._step.specs[ticket.position]
            return np.zeros(spec.numel, spec.accumulator)
        try:
            if run.failure is not None:
                raise run.failure
            # The carrier first: it refuses before anything of the message is taken in.
            self._step.report(ticket, reduced)
            with under_way.lock:  # the thread that comes first does it for all
                if not under_way.is_finished:
                    under_way.is_finished = True
                    self._finish(under_way, received)
            if under_way.failure is not None:
                raise under_way.failure
            result = self._step.result(ticket, reduced, parameter)
        except Exception as error:
            if self.planner is not None:
                self.planner.fail()
            self._take_back(run, error)
            raise
        self._ledger.end(ticket.key)
        if self.witness is not None:
            self.witness.note(ticket.position, result, ticket.scale)
        if self.planner is not None:
            self.planner.returned()
        return result

    def _finish(self, under_way: BucketUnderWay, received: np.ndarray) -> None:
        bucket = under_way.bucket
        try:
            try:
                under_way.conversation.send(received)
            except StopIteration as stop:
                if bucket.began_s:
                    keys = ", ".join(self._step.specs[position].key for position in bucket.members)
                    self._step.spans.tell(
                        "exchange", f"hvd_sparse.{bucket.index}: {keys}", bucket.began_s
                    )
                self._step.receive(bucket, stop.value)
            else:
                raise AssertionError("an exchange asks for more collectives than its phases name")
        except Exception as error:  # for every tensor of the bucket to raise, in its own thread
            under_way.failure = error

    def _take_back(self, run: StepRun, error: Exception) -> None:
        """Undo a step in one thread, while the step's other tensors are in other threads.

        First wait until they have passed all phases: once this tensor raises, TensorFlow drops
        operations that have not begun, and the other ranks would wait for them.
        """
        self._ledger.clear()
        if is_elastic():  # Horovod's elastic run ends in silence at errors that it does not know
            logger.error("%s: %s", type(error).__name__, error)
        if self._policy is not None:
            self._policy.fail()
        run.is_raising, run.failure = True, run.failure or error
        deadline = time.monotonic() + LONGEST_WAIT_S
        while len(run.received) < len(self._traced) and time.monotonic() < deadline:
            time.sleep(0.001)
        self._step.transactions.fail(run, error)
        run.is_raising = False

    def _note(self, scale: Value) -> float:
        """Return the loss scale; store the hyper-parameters that follow it."""
        return float(scale) if self.follower is None else self.follower.note(np.asarray(scale))

    def finish_dense(
        self, token: Value, scale: Value, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the optimizer's input for a tensor that Horovod reduced itself."""
        position = self.position(token)
        assert position is not None  # one that is unknown is refused when it is traced
        ticket = self._step.enter_dense(position, self._note(scale))
        return self._step.finish_dense(ticket, reduced, parameter)


def _as_bytes(token: Value) -> bytes:
    # TensorFlow passes a string as bytes, or eagerly as an array that holds them.
    return bytes(token.item() if isinstance(token, np.ndarray) else token)


def _moved(request: Request) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(request, AllToAll):
        return request.array, request.splits.astype(np.int32, copy=False)
    return request.array, NO_SPLITS
