"""The planner: all strategies by name, and the best one."""

from __future__ import annotations

from collections.abc import Callable

from hvd_sparse.autotune.costmodel.exact import RULES, exact
from hvd_sparse.autotune.costmodel.instance import Instance, Plan
from hvd_sparse.autotune.costmodel.timeline import end_s


def best(instance: Instance) -> Plan:
    """Return the quickest plan, which is never slower than another strategy's: see ``exact``."""
    return exact(instance).plan


STRATEGIES: dict[str, Callable[[Instance], Plan]] = {**RULES, "exact": best}
"""Strategies by name.  Each makes a plan for an instance."""


def compare(instance: Instance) -> dict[str, float]:
    """Return the seconds at which a step ends, by strategy."""
    return {name: end_s(instance, strategy(instance)) for name, strategy in STRATEGIES.items()}
