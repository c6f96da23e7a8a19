"""Policies that measure a run's first steps, and let rank 0 decide for all: ``groups="planned"``
and ``density="hiding"``. If step times change, they measure again."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.composition import PLANNED
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.plan.costs import Costs, sizes_of, time_messages
from hvd_sparse.plan.decisions import GroupPlan, HiddenDensities
from hvd_sparse.plan.policy import SPARSE, WARMUP, Owner, Policy, tell_all, waiting
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.step.buckets import expected_bytes
from hvd_sparse.step.records import StepRun, Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.tracing import Span
from hvd_sparse.types import Report, Value

logger = logging.getLogger("hvd_sparse")

STEPS = 5
"""Number of measured steps. Results are medians, which one delayed step hardly changes."""
WINDOW = 20
"""Number of steps in a window; the median step times of windows are compared."""
SETTLING = 5
"""Number of steps after a decision that are not timed."""
REVIEW_EVERY = 500
"""Number of steps from the end of one window to the end of the next."""
FACTOR = 1.5
"""Step times have changed if a window's median differs from the first by more than this factor."""
ENOUGH = STEPS // 2 + 1
"""Number of successful steps that a decision needs; with fewer, the ranks continue measuring."""


class Measurements:
    """A rank's measurements of its own steps. Steps that failed or were rolled back are dropped."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(list)
        self._kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._step: dict[str, dict[str, float]] = defaultdict(dict)
        self._whole_s: dict[int, float] = {}
        self._number = 0
        self._began_s = self._own_s = self._ended_s = 0.0
        self.told_s = 0.0
        """Seconds of selecting and encoding since the last call of ``spend``."""

    def begin(self, now_s: float, *, was_good: bool) -> None:
        if was_good:
            for kind, values in self._step.items():
                for key, value in values.items():
                    self._kept[kind][key].append(value)
            for key in self._step["ready"]:
                self._seen[key].append(self._number)
            self._whole_s[self._number] = max(0.0, self._ended_s - self._began_s)
        self._step.clear()
        self._number += 1
        self._began_s, self._ended_s, self._own_s = now_s, now_s, 0.0

    def came_first(self, now_s: float) -> None:
        """Called with each gradient in graphs of TensorFlow. With a step's first gradient, restart
        the step's time, because in graphs ``begin`` runs before this gradient arrives."""
        if not self._step["ready"]:
            self._began_s, self._own_s = now_s, 0.0

    def end(self, now_s: float) -> None:
        self._ended_s = now_s

    def arrive(self, key: str, now_s: float) -> None:
        """Record when a gradient arrived, in seconds since the step's first gradient, without the
        time that this package spent in between."""
        self._step["ready"][key] = max(0.0, now_s - self._began_s - self._own_s)

    def spend(self, seconds: float) -> None:
        self._own_s += seconds
        self.told_s = 0.0

    def send(self, key: str, nbytes: float) -> None:
        self._step["nbytes"][key] = nbytes

    def listen(self, span: Span) -> None:
        if span.kind == "exchange":
            return
        kind = "decode" if span.kind == "decode" else "work"
        for key, seconds in span.seconds().items():
            self._step[kind][key] = self._step[kind].get(key, 0.0) + seconds
            if span.kind == "encode":
                self._step["encode"][key] = seconds
        if kind == "work":
            self.told_s += span.end_s - span.start_s

    def to_dict(self) -> Report:
        """Return a JSON-serializable dict. All but "seen", "whole" and "steps" are medians over the
        steps, by tensor name. If one selection is made over a group, "work" has its seconds by the
        group's name.

        "ready" : seconds from the step's first gradient to the tensor's, without our own work
        "work" : seconds of selecting and encoding
        "encode", "decode" : seconds of encoding and of decoding
        "nbytes" : bytes sent
        "seen" : by tensor name, the numbers of the steps in which the tensor had a gradient
        "whole" : seconds of each step, by the step's number
        "steps" : number of steps that succeeded
        """
        medians = {
            kind: {key: statistics.median(values) for key, values in self._kept[kind].items()}
            for kind in ("ready", "work", "encode", "decode", "nbytes")
        }
        whole = {str(number): seconds for number, seconds in self._whole_s.items()}
        return {**medians, "whole": whole, "steps": len(whole), "seen": dict(self._seen)}


class MeasuringPolicy(Policy):
    """Base class of policies that measure steps until all ranks adopt one decision, an object of
    class ``kind``; then ``is_over`` is True."""

    kind: ClassVar[type[GroupPlan | HiddenDensities]]
    departed: ClassVar[str]
    """End of the warning about changed step times: what was decided from the earlier step times."""

    def __init__(self, step: Step, name: str) -> None:
        super().__init__()
        self._step = step
        self._name = f"hvd_sparse.{self.kind.label}.{name}"
        self._timing = f"the timing of messages for {self.kind.option}"
        self._came_s = 0.0
        self.measurements = Measurements()
        self._measure()

    def _measure(self) -> None:
        """Discard the decision and all measurements, if there are any, and begin to measure."""
        self._stop()
        self.measurements = Measurements()
        self.decision = None
        self.is_over = False
        self._steps = 0
        self._run: StepRun | None = None
        self._first_s, self._left = 0.0, SETTLING + WINDOW
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._step.spans.add(self.measurements.listen)

    def _stop(self) -> None:
        self._step.spans.remove(self.measurements.listen)
        self.is_over = True

    def _adopt(self, owner: Owner, decision: Value) -> None:
        """Apply the decision. Called on all ranks at the beginning of the same step."""

    def begin(self, owner: Owner, position: int | None) -> str:
        if self.is_over:
            if self.clock.is_between and self.decision is not None:
                self._watch_step(owner, position)
            return SPARSE
        if self.clock.begins(position):
            self._begin_step(owner)
        self._came_s = time.perf_counter()
        if position is not None:
            self.measurements.arrive(self._step.specs[position].key, self._came_s)
        return SPARSE

    def _begin_step(self, owner: Owner) -> None:
        """Begin a step that is measured. If enough steps are measured for a decision, all ranks
        compare their measurements, and may adopt a decision. All do this in the same step."""
        run, self._run = self._run, None
        was_good = run is not None and run.failure is None and run.is_finite
        is_counted = was_good and self._steps > WARMUP
        if run is not None and is_counted:
            self._note_bytes(run)
        measured = self._steps - WARMUP
        if measured > 0 and measured % STEPS == 0:
            # Close the last measured step, so that its measurements are included.
            self.measurements.begin(0.0, was_good=is_counted)
            is_counted = False
            with waiting(owner, self._timing):
                self.decision = self._agree(owner)
        self._steps += 1
        self.measurements.begin(time.perf_counter(), was_good=is_counted)
        if self.decision is not None:
            self._stop()
            self._adopt(owner, self.decision)
            self.clock.drop()

    def _agree(self, owner: Owner) -> Value:
        gatherer = Gatherer(owner.messenger, self._name, owner.configuration.timeout_s)
        told = gatherer.tell_all(self.measurements.to_dict())
        if min(each["steps"] for each in told) < ENOUGH:
            return None
        samples = gatherer.tell_all(time_messages(gatherer, sizes_of(told)))
        # Rank 0 decides for all ranks, because rounding differs between machines.
        is_first = gatherer.collective.rank == 0
        mine = None
        if is_first:
            try:
                step = self._step
                costs = Costs(step.configuration, step.specs, told, samples, step.buckets)
                mine = asdict(self.kind.make(costs))
            except Exception as error:  # the other ranks wait for rank 0
                mine = {"failure": f"{type(error).__name__}: {error}"}
        decided = gatherer.tell_all(mine)[0]
        if "failure" in decided:
            raise PeerFailure(
                f"rank 0 could not decide for {self.kind.option}: {decided['failure']}; leave out "
                "this option"
            )
        decision = self.kind.from_dict(decided)
        if is_first:
            logger.warning("compressor %s: %s", owner.name, decision)
        return decision

    def _watch_step(self, owner: Owner, position: int | None) -> None:
        """Begin a step after the decision, and measure again if step times have changed on the
        slowest rank (``FACTOR``). The ranks compare their medians by a collective. This is
        possible, because no exchange is running during this call."""
        self.clock.begins(position)
        last_s = self.clock.begin()
        if last_s is not None:
            self._times.append(last_s)
        self._left -= 1
        if self._left:
            return
        self._left = REVIEW_EVERY
        median_s = statistics.median(self._times) if self._times else 0.0
        slowest_s = max(tell_all(owner, self._timing, f"{self._name}.review", median_s))
        first_s = self._first_s = self._first_s or slowest_s
        if slowest_s and not first_s / FACTOR <= slowest_s <= first_s * FACTOR:
            if owner.collective.rank == 0:
                text = "compressor %s: steps take %.1f ms now, and took %.1f ms when %s"
                logger.warning(text, owner.name, 1e3 * slowest_s, 1e3 * first_s, self.departed)
            self._measure()
        self.clock.resume()

    def _note_bytes(self, run: StepRun) -> None:
        """Record the bytes that each compressed tensor sent, scaled to the density after warm-up.
        Called after the step, because a bucket's frames (encoded selections) are made together."""
        configuration, transactions = self._step.configuration, self._step.transactions
        for position in run.completed & self._step.compressed:
            spec = self._step.specs[position]
            nbytes = expected_bytes(configuration, spec, LONG_RUN)
            if not transactions.is_current(position, run):  # for example, a state was loaded
                self.measurements.send(spec.key, nbytes)
                continue
            state = transactions.staged(position)
            sent = None if state.counted is None else state.counted[1]
            # None in dense steps, and if the exchange makes the frame.
            if sent is not None and sent.frame is not None:
                now = configuration.density(state.steps, spec, state.pace)
                later, nbytes = configuration.density(LONG_RUN, spec), sent.frame.nbytes
                if now and later and now != later:
                    numel = spec.numel
                    nbytes *= count_from_density(numel, later) / count_from_density(numel, now)
            self.measurements.send(spec.key, nbytes)

    def sent(self, position: int, ticket: Ticket) -> None:
        if self.is_over:
            return
        self._run = ticket.run
        # With select_over="group", only selecting and encoding depend on the groups. All other time
        # that this package spends on a tensor is counted as part of the backward pass.
        is_merged = self._step.configuration.select_over == "group"
        own_s = time.perf_counter() - self._came_s
        self.measurements.spend(self.measurements.told_s if is_merged else own_s)

    def arrived(self) -> None:
        self.measurements.end(time.perf_counter())
        self.clock.end()

    def forget_world(self, owner: Owner) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._measure()
        self.clock.request()


class PlannedGroups(MeasuringPolicy):
    """Policy of ``groups="planned"``: measures the default groups, then uses the fastest plan."""

    kind = GroupPlan
    departed = "their groups were planned, so the groups are planned again"

    def _adopt(self, owner: Owner, decision: GroupPlan) -> None:
        self._step.regroup(decision.buckets(self._step.specs), is_over=True)

    def regrouped(self, groups: object) -> None:
        self._start_over()
        if groups != PLANNED:
            self._stop()


class GraphPlannedGroups(PlannedGroups):
    """Policy of ``groups="planned"`` for TensorFlow graphs, whose groups are fixed when a graph is
    traced. During the measurement, each gradient has a message of its own. The program calls
    ``replan`` when a step begins, because the policy cannot detect this: in a graph, gradients can
    arrive in any thread, and some results are ready before other gradients arrive."""

    def __init__(self, step: Step, name: str) -> None:
        super().__init__(step, name)
        self._lock = threading.Lock()
        self._told: object = None  # the groups that the program knows from ``replan``

    def replan(self, owner: Owner) -> bool:
        """Begin a step. Return whether the groups have changed since the last call, so that graphs
        must be traced again. This is also the case if ``forget_world`` has dropped the plan."""
        self.clock.request()
        self.begin(owner, None)
        before, self._told = self._told, getattr(self.decision, "groups", None)
        return self._told != before

    def took(self, position: int, ticket: Ticket, came_s: float, *, everything: bool) -> None:
        if self.is_over:
            return
        with self._lock:
            self.measurements.came_first(came_s)
            self.measurements.arrive(self._step.specs[position].key, came_s)
            self._came_s = came_s
            self.sent(position, ticket)

    def arrived(self) -> None:
        with self._lock:
            super().arrived()

    # Do not regroup here: graphs get new groups only when the program traces them again.
    _adopt = MeasuringPolicy._adopt


class HidingPolicy(MeasuringPolicy):
    """Policy of ``density="hiding"``: uses the smallest density during the measurement, and then
    the largest densities at which the messages still end during the backward pass."""

    kind = HiddenDensities
    departed = "their densities were measured, so they are measured again"
    _loaded: dict[str, float] | None = None

    def _adopt(self, owner: Owner, decision: HiddenDensities) -> None:
        owner.settle_densities(decision.densities)

    def begin(self, owner: Owner, position: int | None) -> str:
        if self._loaded is not None and self.clock.is_between:
            self._take_loaded(owner)
        return super().begin(owner, position)

    def loaded(self, owner: Owner, tensors: Mapping[str, Any]) -> None:
        """Use the densities of a loaded state. If the state has none, measure again."""
        told = {key: tensor.get("density") for key, tensor in tensors.items()}
        self._loaded = {key: float(density) for key, density in told.items() if density}
        owner.settle_densities(self._loaded)

    def _take_loaded(self, owner: Owner) -> None:
        """Check that all ranks have loaded the same densities, and stop measuring if they have
        loaded any. All ranks call this in the same step."""
        mine, self._loaded = self._loaded, None
        told = tell_all(owner, self._timing, f"{self._name}.loaded", mine)
        if any(theirs != mine for theirs in told):
            raise RankMismatch(
                "the ranks have loaded states with different densities: load the same checkpoint "
                "on all ranks"
            )
        self._measure()
        if mine:
            self._stop()

    def forget_world(self, owner: Owner) -> None:
        owner.settle_densities({})  # new workers have none
        super().forget_world(owner)
