"""Measuring the first steps of a run, and then one decision of rank 0's for all ranks."""

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
"""Good steps without which ranks go on measuring, where steps failed."""


class Decision(Protocol):
    """A decision that all ranks adopt, which says in words what it is."""

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able."""


Decided = TypeVar("Decided", bound=Decision)


class FirstSteps(Generic[Decided]):
    """One compressor's: counts its steps, and says at which of them a decision is adopted.

    Parameters
    ----------
    step : of the compressor, with the buckets that it has until there is a decision
    name : of the compressor, for the collectives' names
    """

    label: ClassVar[str]
    """Part of the collectives' names."""
    purpose: ClassVar[str]
    """What rank 0 does, in words of an error."""
    option: ClassVar[str]
    """The option that asks for it."""

    def __init__(self, step: Step, name: str) -> None:
        self._step, self._name = step, name
        self.restart()

    def _make(self, route: Route, told: Sequence[Told], samples: Sequence[Samples]) -> Decided:
        """Return the decision, from the measurements of all ranks.  Rank 0's."""
        raise NotImplementedError

    def _read(self, told: Told) -> Decided:
        """Return the decision that rank 0 has told."""
        raise NotImplementedError

    def restart(self) -> None:
        """Measure anew: the ranks or the network are others."""
        self.measurements = Measurements()
        self.plan: Decided | None = None
        self.is_over = False
        self._steps = 0

    def stop(self) -> None:
        """Measure no more: what was to be decided was given."""
        self.plan, self.is_over = None, True

    @property
    def is_due(self) -> bool:
        """Tell whether the step that begins is one at which all ranks come together."""
        measured = self._steps - WARMUP
        return measured > 0 and measured % STEPS == 0

    def next(
        self, collective: Collective, timeout_s: float | None, *, was_good: bool
    ) -> Decided | None:
        """Begin a step, on all ranks; return the decision at the step that adopts it, else None.

        Collective where ``is_due``.

        Parameters
        ----------
        collective, timeout_s : brings the ranks together; seconds after which that is an error
        was_good : the last step ended well
        """
        is_counted = was_good and self._steps > WARMUP
        if self.is_due:
            # Closes the last measured step, so that its numbers are in what is told.
            self.measurements.begin(0.0, was_good=is_counted)
            self.plan = self._agree(collective, timeout_s)
            is_counted = False  # it has been, and nothing was measured since
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
        # One rank decides for all: another machine's floats could make another decision.
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
        """Rank 0's; in words what went wrong, as the other ranks wait."""
        try:
            decision = self._make(route, told, samples)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}
        return decision.to_dict()
