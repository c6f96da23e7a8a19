"""All strategies by name, and the quickest of them."""

from __future__ import annotations

from typing import Callable

from .exact import exact
from .instance import Instance, Plan
from .strategies import as_ready, best_buckets, greedy, merge_all, no_merge, quickest
from .timeline import end_s

STRATEGIES: dict[str, Callable[[Instance], Plan]] = {
    "no_merge": no_merge,
    "merge_all": merge_all,
    "buckets": best_buckets,
    "as_ready": as_ready,
    "greedy": greedy,
    "greedy_fixed": lambda instance: greedy(instance, as_published=False),
    "exact": lambda instance: exact(instance).plan,
}
"""By name.  Each makes a plan for an instance."""


def best(instance: Instance) -> Plan:
    """The quickest of all: the dynamic program's, unless it had to thin out and another strategy did better."""
    return quickest(instance, plans(instance).values())


def plans(instance: Instance) -> dict[str, Plan]:
    """Of every strategy."""
    return {name: strategy(instance) for name, strategy in STRATEGIES.items()}


def compare(instance: Instance) -> dict[str, float]:
    """Seconds at which a step ends, by strategy, and of "best"."""
    made = plans(instance)
    made["best"] = quickest(instance, made.values())
    return {name: end_s(instance, plan) for name, plan in made.items()}
