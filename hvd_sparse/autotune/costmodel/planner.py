"""All strategies by name, and the one to use."""

from __future__ import annotations

from typing import Callable

from hvd_sparse.autotune.costmodel.exact import RULES, exact
from hvd_sparse.autotune.costmodel.instance import Instance, Plan
from hvd_sparse.autotune.costmodel.timeline import end_s


def best(instance: Instance) -> Plan:
    """The quickest plan: see ``exact``.  Never slower than any other strategy's."""
    return exact(instance).plan


STRATEGIES: dict[str, Callable[[Instance], Plan]] = {**RULES, "exact": best}
"""By name.  Each makes a plan for an instance."""


def compare(instance: Instance) -> dict[str, float]:
    """Seconds at which a step ends, by strategy."""
    return {name: end_s(instance, strategy(instance)) for name, strategy in STRATEGIES.items()}
