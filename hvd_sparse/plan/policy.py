"""Base class of policies, which decide at every step how gradients are sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.plan.group_plan import GroupPlan
from hvd_sparse.plan.hiding import HiddenDensities
from hvd_sparse.state.checkpoint_file import Gatherer
from hvd_sparse.step.records import Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.watch.watchdog import Watchdog

SPARSE, FP16 = "sparse", "fp16"
WAYS = (SPARSE, "dense", FP16)
EVERYTHING = "everything"
"""The way of a dense step that also sends the residuals, before a change to a dense way."""


@dataclass(frozen=True)
class Verdict:
    """Result of a trial: the chosen way ("sparse", "dense" or "fp16"), and the slowest rank's
    median seconds of a step by way.
    """

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
    """The part of a compressor that policies use; an argument, because an attribute would be a
    cycle."""

    name: str
    configuration: Configuration
    step: Step
    collective: Collective
    messenger: Collective
    watchdog: Watchdog

    @property
    def limit_s(self) -> float | None:
        """Time limit of a collective, in seconds; None for no limit."""

    def settle_densities(self, densities: Mapping[str, float]) -> None:
        """Use measured densities, by name, and the least density for all other tensors."""

    def explain(self, error: ExchangeTimeout) -> BaseException:
        """Return the error with the names of the ranks that caused it."""


class Policy:
    """Base class of policies; this one sends all gradients sparse.

    All ranks make the same calls at the same steps, so calls may be collective.
    """

    @property
    def verdict(self) -> Verdict | None:
        """The result of the last trial of ``Compression.auto``; None before it."""
        return None

    @property
    def plan(self) -> GroupPlan | None:
        """The plan of ``groups="planned"``; None before the decision."""
        return None

    @property
    def hiding(self) -> HiddenDensities | None:
        """The result of ``density="hiding"``; None before the decision."""
        return None

    def begin(self, owner: Owner, position: int | None) -> str:
        """Return the way of a gradient's step: one of ``WAYS``, or "everything".

        ``position`` is None for a tensor that is not registered.
        """
        return SPARSE

    def sent(self, owner: Owner, position: int, ticket: Ticket) -> None:
        """Called after a tensor was compressed."""

    def end(self, owner: Owner) -> None:
        """Called when a result is requested; the next gradient begins a step."""

    def arrived(self, owner: Owner) -> None:
        """Called when a result has arrived."""

    def fail(self) -> None:
        """Called when the step has failed."""

    def describe(self) -> dict[str, object]:
        """Return the options that must be equal on all ranks, JSON-serializable."""
        return {}

    def loaded(self, owner: Owner, tensors: Mapping[str, object]) -> None:
        """Called after states were loaded, with the states by tensor name."""

    def regrouped(self, owner: Owner, groups: object) -> None:
        """Called after the program has changed the groups."""

    def forget_world(self, owner: Owner) -> None:
        """Start over after the ranks have changed."""


@contextlib.contextmanager
def waiting(owner: Owner, what: str) -> Iterator[None]:
    """Return a context for collectives of a policy; the watchdog reports them as ``what``."""
    ledger = owner.watchdog.ledger
    ledger.begin(what)
    try:
        with ledger.waiting():
            yield
    except ExchangeTimeout as error:
        raise owner.explain(error) from error
    finally:
        ledger.end(what)


def tell_all(owner: Owner, what: str, name: str, mine: object) -> list[Any]:
    """Return the JSON-serializable values of all ranks, in rank order. Collective."""
    with waiting(owner, what):
        return Gatherer(owner.collective, name, owner.limit_s).tell_all(mine)
