"""Measurement of the first steps of a run, and a decision from it by rank 0 for all ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.errors import PeerFailure
from hvd_sparse.plan.measurements import (
    STEPS,
    WARMUP,
    Measurements,
    Samples,
    Told,
    sizes_of,
    time_messages,
)
from hvd_sparse.plan.route import Route
from hvd_sparse.state.gathering import Gatherer
from hvd_sparse.step.step import Step
from hvd_sparse.untyped import Report

logger = logging.getLogger("hvd_sparse")

ENOUGH = STEPS // 2 + 1
"""Successful steps that are needed for a decision; with fewer, the ranks continue measuring."""


class Decision(Protocol):
    """A decision that all ranks adopt; ``str`` describes it for the log."""

    def to_dict(self) -> dict[str, object]:
        """Return the decision as a JSON-serializable dict."""


Decided = TypeVar("Decided", bound=Decision)


class FirstSteps(Generic[Decided]):
    """The first steps of a compressor: measures them, and makes the decision.

    Parameters
    ----------
    step : the compressor's step, with the buckets used until the decision
    name : name of the compressor, for the collectives' names
    """

    label: ClassVar[str]
    """Part of the collectives' names."""
    purpose: ClassVar[str]
    """The purpose of the decision, for errors: "rank 0 could not <purpose>"."""
    option: ClassVar[str]
    """The option that asks for the decision, for errors."""

    def __init__(self, step: Step, name: str) -> None:
        self._step, self._name = step, name
        self.restart()

    def _make(self, route: Route, told: Sequence[Told], samples: Sequence[Samples]) -> Decided:
        """Return the decision from the measurements of all ranks; called on rank 0."""
        raise NotImplementedError

    def _read(self, told: Told) -> Decided:
        """Return the decision from its dict, as received from rank 0."""
        raise NotImplementedError

    def restart(self) -> None:
        """Measure again, for example after the ranks have changed."""
        self.measurements = Measurements()
        self.plan: Decided | None = None
        self.is_over = False
        self._steps = 0

    def stop(self) -> None:
        """Stop measuring, because the program or a checkpoint gave the values to decide."""
        self.plan, self.is_over = None, True

    @property
    def is_due(self) -> bool:
        """Whether ``next`` is collective at the step that begins."""
        measured = self._steps - WARMUP
        return measured > 0 and measured % STEPS == 0

    def next(
        self, collective: Collective, timeout_s: float | None, *, was_good: bool
    ) -> Decided | None:
        """Begin a step; return the decision if this step adopts it, else None.

        All ranks call it at every step. It is collective if ``is_due``.

        Parameters
        ----------
        collective : the ranks' collectives
        timeout_s : time limit of each collective, in seconds
        was_good : whether the last step succeeded
        """
        is_counted = was_good and self._steps > WARMUP
        if self.is_due:
            # Close the last measured step, so that its numbers are included.
            self.measurements.begin(0.0, was_good=is_counted)
            self.plan = self._agree(collective, timeout_s)
            is_counted = False  # it has been counted
        self.is_over = self.plan is not None
        self._steps += 1
        self.measurements.begin(time.perf_counter(), was_good=is_counted)
        return self.plan

    def _agree(self, collective: Collective, timeout_s: float | None) -> Decided | None:
        gatherer = Gatherer(collective, f"hvd_sparse.{self.label}.{self._name}", timeout_s)
        told = gatherer.tell_all(self.measurements.to_dict())
        if min(each["steps"] for each in told) < ENOUGH:
            return None
        placement = self._step.placement or in_nodes_of(1, collective.rank, collective.world_size)
        route = Route(self._step.configuration, self._step.exchange, placement)
        name = f"hvd_sparse.{self.label}.{self._name}.size"
        samples = gatherer.tell_all(
            time_messages(collective, name, route, sizes_of(told), timeout_s)
        )
        # Rank 0 decides for all, because rounding differs between machines.
        decided = gatherer.tell_all(
            self._decide(route, told, samples) if collective.rank == 0 else None
        )[0]
        if "failure" in decided:
            raise PeerFailure(
                f"rank 0 could not {self.purpose}: {decided['failure']}; leave out {self.option}"
            )
        decision = self._read(decided)
        if collective.rank == 0:
            logger.warning("compressor %s: %s", self._name, decision)
        return decision

    def _decide(self, route: Route, told: Sequence[Told], samples: Sequence[Samples]) -> Report:
        """Return the decision's dict, or {"failure": text}, because the other ranks wait."""
        try:
            decision = self._make(route, told, samples)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}
        return decision.to_dict()
