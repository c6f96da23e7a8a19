"""Policy: what a compressor asks at every step, if it does not always go one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.plan.group_plan import GroupPlan
from hvd_sparse.plan.hidden_densities import HiddenDensities
from hvd_sparse.plan.trial import SPARSE, Verdict
from hvd_sparse.step.records import Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.watch.watchdog import Watchdog

EVERYTHING = "everything"
"""The way of a step that sends all residuals along, dense, before another way is gone."""


class Owner(Protocol):
    """A compressor, as its policy sees it.

    It comes with every call, so that neither keeps the other alive.
    """

    name: str
    configuration: Configuration
    step: Step
    collective: Collective
    messenger: Collective
    watchdog: Watchdog

    @property
    def limit_s(self) -> float | None:
        """Return the seconds after which a wait is an error."""

    def settle_densities(self, densities: Mapping[str, float]) -> None:
        """Take densities that the run has measured, by name; the least for all others."""

    def explain(self, error: ExchangeTimeout) -> BaseException:
        """Return the error, with the ranks that are behind it."""


class Policy:
    """Decision on how the gradients of a step travel; this one leaves everything as it is.

    All ranks ask the same, at the same steps: what is asked may be collective.
    """

    verdict: Verdict | None = None
    plan: GroupPlan | None = None
    hiding: HiddenDensities | None = None

    def begin(self, owner: Owner, position: int | None) -> str:
        """Return the way of the step that a gradient is in: one of ``trial.WAYS``, or "everything".

        Parameters
        ----------
        position : of its tensor; None for one that belongs to none
        """
        return SPARSE

    def sent(self, owner: Owner, position: int, ticket: Ticket) -> None:
        """Learn what a tensor sends, which was not handed to Horovod as it is."""

    def end(self, owner: Owner) -> None:
        """Learn that a result was asked for: what comes next begins a step."""

    def arrived(self, owner: Owner) -> None:
        """Learn that a result is there."""

    def fail(self) -> None:
        """Learn that the step has failed."""

    def describe(self) -> dict[str, object]:
        """Return what must be the same on all ranks, JSON-able."""
        return {}

    def loaded(self, owner: Owner, tensors: Mapping[str, object]) -> None:
        """Learn that the states of these tensors were loaded."""

    def regrouped(self, owner: Owner, groups: object) -> None:
        """Learn that the program has given other groups."""

    def forget_world(self, owner: Owner) -> None:
        """Begin anew: the ranks are others."""
