"""The functions that a graph calls at every step: numpy in, numpy out, on the step object."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hvd_sparse.collectives.contract import AllToAll, Collective, Request
from hvd_sparse.errors import UnknownGradient
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.plan.measuring import GraphPlannedGroups
from hvd_sparse.step.records import BucketRun, StepRun, Ticket, joined
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.branches import EVERYTHING, SPARSE
from hvd_sparse.tensorflow.failing import FailingStep
from hvd_sparse.tensorflow.fallback import GraphFallback
from hvd_sparse.tensorflow.optimizer import Follower
from hvd_sparse.tensorflow.witness import Witness
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Value
from hvd_sparse.watch.ledger import Ledger
from hvd_sparse.wire.padding import Padding

NO_SPLITS = np.empty(0, np.int32)
"""Splits of an array that goes to all ranks alike."""


@dataclass(eq=False)
class BucketUnderWay:
    """A bucket whose exchange has begun.

    Attributes
    ----------
    conversation : the exchange
    bucket : the tensors' selections
    numbers : of its tensors
    lock : held by the thread that processes the last phase's data
    is_finished, failure : whether that is done; the error if it failed
    """

    conversation: Conversation
    bucket: BucketRun
    numbers: tuple[int, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_finished: bool = False
    failure: Exception | None = None


class GraphFunctions:
    """The two halves of a tensor's step, called by TensorFlow's executor in any thread.

    Every tensor is a bucket of its own, unless Horovod hands several over as a group. Horovod
    reduces each gradient, or group, inside a branch of its own, and no tensor can pass from one
    branch's graph to another's.

    Parameters
    ----------
    step, collective : of the compressor
    tokens : positions of variables, by their ``identity.runtime_token``
    ledger : records submitted and received tensors
    policy : notified of sent residuals and failed steps
    """

    def __init__(
        self,
        step: Step,
        collective: Collective,
        tokens: Mapping[bytes, int],
        ledger: Ledger,
        policy: GraphFallback | None = None,
    ) -> None:
        self._step = step
        self._receiver = step.receiver
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
        """Of the tensors that Horovod reduces dense, in a step."""
        self._traced: set[str] = set()
        self._failing = FailingStep(step, ledger, policy, self._traced)
        self._counted: StepRun | None = None
        self.follower: Follower | None = None
        self.recorder: Recorder | None = None
        self.planner: GraphPlannedGroups | None = None
        self.witness: Witness | None = None

    def note_dense(self, spec: TensorSpec) -> None:
        """Learn of a tensor that Horovod reduces dense at every step, when the graph is traced."""
        self._dense_bytes[spec.key] = spec.numel * spec.accumulator.itemsize
        self.dense_bytes = sum(self._dense_bytes.values())

    def note_sparse(self, spec: TensorSpec) -> None:
        """Learn of a tensor that is sent at every step of some graph, when that is traced."""
        self._traced.add(spec.key)

    def position(self, token: Value) -> int | None:
        """Return whose token it is; None for a variable that is not registered."""
        return self._tokens.get(token if type(token) is bytes else _as_bytes(token))

    def forget(self) -> None:
        """Let go of all that is under way: Horovod was started anew, and none of it will end."""
        self._tickets.clear()
        self._under_way.clear()
        self._place = None

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self,
        gradient: np.ndarray,
        token: Value,
        scale: Value,
        way: Value = SPARSE,
    ) -> tuple[np.ndarray, np.int64, np.ndarray, np.ndarray]:
        """Combine ``take`` and ``seal`` for a tensor outside groups."""
        wire, number, ticket = self._take(gradient, token, scale, way, is_joined=False)
        bucket = ticket.bucket or BucketRun(-1, ())  # of a gradient that no tensor stands for
        array, splits = self._open(bucket, ticket.run, (number,))
        return wire, np.int64(number), array, splits

    def take(
        self, gradient: np.ndarray, token: Value, scale: Value, way: Value = SPARSE
    ) -> tuple[np.ndarray, np.int64]:
        """Return the array to allreduce for a tensor that travels with others, and its number.

        Parameters
        ----------
        gradient : flat; only read, as it is TensorFlow's own memory
        token : of its variable
        scale : of the loss
        way : of the step, as ``branches`` numbers them
        """
        wire, number, _ = self._take(gradient, token, scale, way, is_joined=True)
        return wire, np.int64(number)

    def _take(
        self, gradient: np.ndarray, token: Value, scale: Value, way: Value, *, is_joined: bool
    ) -> tuple[np.ndarray, int, Ticket]:
        if self._place is None:
            self._place = self._collective.rank, self._collective.world_size
        rank, world_size = self._place
        came_s = 0.0 if self.planner is None else time.perf_counter()
        position = self._tokens.get(token if type(token) is bytes else _as_bytes(token))
        everything = bool(way == EVERYTHING)
        if position is None:
            wire, ticket = self._refuse(gradient, rank, world_size)
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
        if everything and self._policy is not None:
            self._policy.note_everything(ticket)
        if self.recorder is not None and len(ticket.run.entered) >= len(self._traced):
            self.recorder.submitted(ticket.run)
        return wire, number, ticket

    def _refuse(
        self, gradient: np.ndarray, rank: int, world_size: int
    ) -> tuple[np.ndarray, Ticket]:
        error = UnknownGradient(
            f"a gradient of {gradient.size} entries belongs to no registered variable: "
            "give the compressor all variables that the tape or optimizer has"
        )
        return self._step.poison(
            error, f"of {gradient.size} entries", gradient.dtype, rank, world_size
        )

    def seal(self, *numbers: np.int64) -> tuple[np.ndarray, np.ndarray]:
        """Return the first array that the exchange of these tensors wants moved, with splits.

        They are of one step on every rank, and in the same order; the graph calls this when all are
        there.
        """
        all_numbers = tuple(int(number) for number in numbers)
        tickets = [self._tickets[number] for number in all_numbers]
        return self._open(joined(tickets), tickets[0].run, all_numbers)

    def _open(
        self, bucket: BucketRun, run: StepRun, numbers: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        assert self._place is not None
        spans = self._step.spans
        if spans.is_heard:
            bucket.began_s = spans.now()
        conversation = self._step.converse(bucket, run, *self._place)
        conversation = self._padding.carry(conversation, bucket.index)
        under_way = BucketUnderWay(conversation, bucket, numbers)
        for number in numbers:
            self._under_way[number] = under_way
        return _moved(next(conversation))

    def advance(self, number: np.int64, received: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next array that the exchange wants moved, with splits."""
        return _moved(self._under_way[int(number)].conversation.send(received))

    # -- receiving --------------------------------------------------------------------------------

    def receive(
        self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the reduced gradient, flat; on any error the step is taken back before it is
        raised.
        """
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
            self._receiver.report(ticket, reduced)
            with under_way.lock:  # the thread that comes first does it for all
                if not under_way.is_finished:
                    under_way.is_finished = True
                    self._finish(under_way, received)
            if under_way.failure is not None:
                raise under_way.failure
            result = self._receiver.result(ticket, reduced, parameter)
        except Exception as error:
            if self.planner is not None:
                self.planner.fail()
            self._failing.take_back(run, error)
            raise
        self._ledger.end(ticket.key)
        if self.witness is not None:
            self.witness.note(ticket.position, result, ticket.scale)
        if self.planner is not None:
            self.planner.returned()
        return result

    def _finish(self, under_way: BucketUnderWay, received: np.ndarray) -> None:
        """Process the data of the last phase."""
        try:
            try:
                under_way.conversation.send(received)
            except StopIteration as stop:
                self._tell(under_way.bucket)
                self._receiver.receive(under_way.bucket, stop.value)
            else:
                raise AssertionError("an exchange asks for more collectives than its phases name")
        except Exception as error:  # for every tensor of the bucket to raise, in its own thread
            under_way.failure = error

    def _tell(self, bucket: BucketRun) -> None:
        """Tell the listeners that an exchange is over."""
        if bucket.began_s:
            keys = ", ".join(self._step.specs[position].key for position in bucket.members)
            self._step.spans.tell("exchange", f"hvd_sparse.{bucket.index}: {keys}", bucket.began_s)

    def _note(self, scale: Value) -> float:
        """Return the loss scale, after storing the hyper-parameters that follow it."""
        return float(scale) if self.follower is None else self.follower.note(np.asarray(scale))

    def finish_dense(
        self, token: Value, scale: Value, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the optimizer's input for a tensor that Horovod reduced itself."""
        position = self.position(token)
        assert position is not None  # one that is unknown is refused when it is traced
        ticket = self._receiver.enter_dense(position, self._note(scale))
        return self._receiver.finish_dense(ticket, reduced, parameter)


def _as_bytes(token: Value) -> bytes:
    """TensorFlow hands a string over as bytes, or eagerly as an array that holds them."""
    return bytes(token.item() if isinstance(token, np.ndarray) else token)


def _moved(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """Return the input of a collective's operation: an array, with its splits if it has any."""
    if isinstance(request, AllToAll):
        return request.array, request.splits.astype(np.int32, copy=False)
    return request.array, NO_SPLITS
