"""Policies decide in each step how gradients are sent. The policy of ``Compression.auto`` is here.

``auto`` times training steps with gradients sent in each way (sparse, dense and fp16), and then
uses the fastest way. A step is timed from its first gradient to its last result. The slowest rank's
medians count, so all ranks choose the same way at once.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.collectives.contract import Collective, Gatherer
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.records import StepRun, Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.types import Value
from hvd_sparse.watch.watchdog import Watchdog

logger = logging.getLogger("hvd_sparse")

SPARSE, FP16 = "sparse", "fp16"
WAYS = (SPARSE, "dense", FP16)
EVERYTHING = "everything"
"""The way of a dense step that also sends the residuals; it precedes "dense" and "fp16" steps."""

WARMUP = 2
"""Number of first steps that are not measured, because they include compilation and allocation."""
HOPELESS = 2.0
"""A way is dropped if its first measured step takes this factor times the best median so far."""
MARGIN = 1.1
"""Factor by which sparse must be faster than the best other way. It is above 1 because medians of a
few steps are uncertain, and dense is the safer choice."""
WORSE = 1.05
"""A new trial begins if the chosen way now takes more than this factor times as long as another way
took in the last trial."""
RECENT = 50
"""Largest number of recent steps from which a review computes the median."""


@dataclass(frozen=True)
class Verdict:
    """A trial's result: the chosen way, and the slowest rank's median seconds of each tried way."""

    way: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        told = ", ".join(f"{way} {1e3 * seconds:.1f} ms" for way, seconds in self.seconds.items())
        words = {
            SPARSE: "gradients are sent sparse",
            "dense": "compression does not pay here: gradients are sent dense, as float32",
            "fp16": "compression does not pay here: gradients are sent dense, as float16",
        }
        return f"{words[self.way]} (time of a step's exchange: {told})"


class Owner(Protocol):
    """The attributes and methods of a compressor that policies use. Every call passes the owner,
    because a policy that stored it would make a reference cycle."""

    name: str
    configuration: Configuration
    step: Step
    collective: Collective
    messenger: Collective
    watchdog: Watchdog

    def settle_densities(self, densities: Mapping[str, float]) -> None:
        """Use measured densities, by tensor name. Other tensors get the smallest density."""


class StepClock:
    """Times steps, from the first gradient to the last result. A new step begins with the first
    gradient after a result was requested (``is_between``), or with a tensor's second gradient."""

    def __init__(self) -> None:
        self._in_step: set[int] = set()
        self.is_between = True
        self._began: float | None = None
        self._ended: float | None = None

    def begins(self, position: int | None) -> bool:
        """Record the arrival of a gradient, and return whether it is the first of its step."""
        is_first = self.is_between or position in self._in_step
        if is_first:
            self._in_step.clear()
        if position is not None:
            self._in_step.add(position)
        self.is_between = False
        return is_first

    def request(self) -> None:
        self.is_between = True

    def begin(self) -> float | None:
        """Begin a step. Return the previous step's seconds; None if it is not to be timed."""
        now, last_s = time.perf_counter(), None
        if self._began is not None:
            last_s = (now if self._ended is None else self._ended) - self._began
        self._began, self._ended = now, None
        return last_s

    def resume(self) -> None:
        """Restart the timer of the step, to exclude the time of a comparison with other ranks."""
        self._began = time.perf_counter()

    def end(self) -> None:
        self._ended = time.perf_counter()

    def drop(self) -> None:
        """Do not time the present step, because it has failed or has not begun with this clock."""
        self._began = None


class Policy:
    """Base class of policies; it sends all gradients sparse. All ranks call the same methods in the
    same steps, so these methods may run collectives."""

    decision: Value = None
    """The ``Verdict``, ``GroupPlan`` or ``HiddenDensities`` of the last measurement, or None."""
    is_dense = False
    """Whether Horovod alone reduces the compressible tensors of this step of a TensorFlow graph."""

    def __init__(self) -> None:
        self.clock = StepClock()

    def begin(self, owner: Owner, position: int | None) -> str:
        """Called with each gradient before the compression. Return how to send the gradient: one of
        ``WAYS``, or ``EVERYTHING``, which means dense with the residual. ``position`` is None for
        an unregistered tensor."""
        return SPARSE

    def sent(self, position: int, ticket: Ticket) -> None:
        """Called after a tensor was compressed."""

    def took(self, position: int, ticket: Ticket, came_s: float, *, everything: bool) -> None:
        """Called in place of ``sent`` in TensorFlow graphs. The gradient arrived at the time
        ``came_s``, in seconds. ``everything`` tells whether ``begin`` returned ``EVERYTHING``."""

    def requested(self) -> None:
        """Called when the program requests a result. The next gradient begins a step."""
        self.clock.request()

    def arrived(self) -> None:
        """Called when a result has arrived."""

    def fail(self) -> None:
        """Called when the step has failed."""
        self.clock.drop()

    def describe(self) -> dict[str, object]:
        """Return the policy's options that must be equal on all ranks, JSON-serializable."""
        return {}

    def loaded(self, owner: Owner, tensors: Mapping[str, object]) -> None:
        """Called after a checkpoint was loaded, with the loaded state of each tensor, by name."""

    def regrouped(self, groups: object) -> None:
        """Called after the program has changed the groups by ``regroup``."""

    def forget_world(self, owner: Owner) -> None:
        """Called after the ranks have changed in an elastic run. Start over."""


@contextlib.contextmanager
def waiting(owner: Owner, what: str) -> Iterator[None]:
    """Return a context for a policy's collectives. ``what`` is their purpose, which the error names
    if one of them times out."""
    ledger = owner.watchdog.ledger
    ledger.begin(what)
    try:
        yield
    finally:
        ledger.end(what)


def tell_all(owner: Owner, what: str, name: str, mine: object) -> list[Value]:
    """Send a JSON-serializable value to all ranks, and return all ranks' values in rank order.
    ``name`` is the collective's name, and ``what`` its purpose, for the error of a timeout."""
    with waiting(owner, what):
        limit_s = owner.configuration.timeout_s
        return Gatherer(owner.collective, name, limit_s).tell_all(mine)


class Trial:
    """Measures the ways in turn, and chooses the fastest. Sparse must be ``MARGIN`` times as fast.

    ways : the ways to try, in this order
    steps : number of measured steps for each way
    review_every : number of steps between reviews of the choice; 0 for no reviews
    """

    def __init__(self, ways: Sequence[str], steps: int, review_every: int) -> None:
        if isinstance(ways, str) or not ways or len(set(ways)) != len(ways):
            raise InvalidOption(f"ways is {ways!r}: give some of {', '.join(WAYS)}, each once")
        for way in ways:
            check_choice(way, "one of ways", WAYS)
        check_whole(steps, "trial_steps", 1)
        check_whole(review_every, "review_every", 0)
        self.ways = tuple(ways)
        self.steps, self.review_every = steps, review_every
        self.restart()

    def restart(self) -> None:
        self.verdict: Verdict | None = None
        self._medians: dict[str, float] = {}
        # Keep only as many durations as the trial of one way, or a review, needs.
        self._durations: deque[float] = deque(maxlen=max(RECENT, WARMUP + self.steps))
        self._done = 0
        """Number of steps of the current way, or since the verdict."""

    @property
    def is_timed(self) -> bool:
        """Whether the current step must be timed, for the trial or for the next review."""
        every = self.review_every
        return self.verdict is None or (every > 0 and every - self._done % every <= RECENT)

    def next(self, last_s: float | None, agree: Callable[[float], list[float]]) -> str:
        """Return the way in which the step that begins sends its gradients. All ranks get the same
        way; to compare their times, they run the collective ``agree``, which gathers one number
        from every rank. ``last_s`` is the time of the previous step in seconds; None if that step
        failed."""
        if last_s is not None:
            self._durations.append(last_s)
            self._done += 1
        if self.verdict is None:
            self._try(agree)
        elif self.review_every and self._done and self._done % self.review_every == 0:
            self._review(agree)
        return self.ways[len(self._medians)] if self.verdict is None else self.verdict.way

    def _try(self, agree: Callable[[float], list[float]]) -> None:
        """Go on to the next way if the current way has been measured ``steps`` times, or if its
        first measured step was too slow. After the last way, choose the fastest."""
        measured = self._done - WARMUP
        is_probed = measured == 1 and self._medians
        if not is_probed and measured < self.steps:
            return
        median = max(agree(statistics.median(list(self._durations)[WARMUP:])))
        if measured < self.steps and median < HOPELESS * min(self._medians.values()):
            return
        medians, way = self._medians, self.ways[len(self._medians)]
        medians[way] = median
        self._durations.clear()
        self._done = 0
        if len(medians) == len(self.ways):
            handicap = {SPARSE: MARGIN}
            fastest = min(medians, key=lambda way: medians[way] * handicap.get(way, 1.0))
            self.verdict = Verdict(fastest, medians)

    def _review(self, agree: Callable[[float], list[float]]) -> None:
        assert self.verdict is not None
        now = max(agree(statistics.median(list(self._durations)[-RECENT:])))
        chosen = self.verdict.way
        others = [seconds for way, seconds in self.verdict.seconds.items() if way != chosen]
        if others and now > WORSE * min(others):
            self.restart()


class Fallback(Policy):
    """Policy of ``Compression.auto``, which sends gradients in the way that its trial chose.

    If this way is "dense" or "fp16", Horovod reduces the gradients as it does without a compressor.
    Before the first such step, each tensor has one step in which its residual is sent too
    (``EVERYTHING``). If ``sends_all``, every dense step sends all entries that the memory holds,
    because the memory computes the optimizer's momentum.
    """

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        super().__init__()
        self.trial = trial
        self.sends_all = sends_all
        self.owed: dict[int, StepRun | None] = {}
        """The tensors whose residuals must be sent before dense gradients. Maps each tensor's
        position to the step that sends its residual, or to None before that step."""
        self._way = SPARSE

    def begin(self, owner: Owner, position: int | None) -> str:
        if position is None:
            return SPARSE
        if self.clock.begins(position):
            self._way = self.next_way(owner)
        if self._way == SPARSE:
            return SPARSE
        # All ranks get the same answer, because all have the results of the step before.
        if self.is_paid(position):
            del self.owed[position]
        return EVERYTHING if self.sends_all or position in self.owed else self._way

    def next_way(self, owner: Owner) -> str:
        """Return the way in which the next step's gradients are sent. May run a collective."""
        before = self.decision
        # Read the clock first, so that the time of the step before excludes the collective.
        way = self.trial.next(self.clock.begin(), lambda mine: self.agree(owner, mine))
        found = self.decision = self.trial.verdict
        if found is not None and found is not before and owner.collective.rank == 0:
            logger.warning("compressor %s: %s", owner.name, found)
        self.clock.resume()
        return way

    def agree(self, owner: Owner, mine: float) -> list[float]:
        what = "the trial of Compression.auto"
        return tell_all(owner, what, f"hvd_sparse.trial.{owner.name}", mine)

    def is_paid(self, position: int) -> bool:
        """Return whether a tensor's residual was sent in a step that succeeded on all ranks."""
        run = self.owed.get(position)
        return run is not None and run.keeps(position)

    def sent(self, position: int, ticket: Ticket) -> None:
        if ticket.bucket is not None:
            self.owed[position] = None if self._way == SPARSE else ticket.run

    def arrived(self) -> None:
        self.clock.end()

    def describe(self) -> dict[str, object]:
        ways, steps, every = self.trial.ways, self.trial.steps, self.trial.review_every
        return {"trial": {"ways": list(ways), "trial_steps": steps, "review_every": every}}

    def loaded(self, owner: Owner, tensors: Mapping[str, object]) -> None:
        """Record that residuals were loaded, so that they are sent before dense gradients."""
        self.owed.clear()
        for position, spec in enumerate(owner.step.specs):
            if spec.key in tensors and position in owner.step.compressed:
                self.owed[position] = None

    def forget_world(self, owner: Owner) -> None:
        self.clock = StepClock()
        self.trial.restart()
        self.decision = None
        # Steps that were running have not sent any residuals.
        self.owed.update(dict.fromkeys(self.owed))
