"""Planning problems to try planners on, and the slow ways to solve them."""

from __future__ import annotations

import numpy as np

from hvd_sparse.plan.costs import Line
from hvd_sparse.plan.group_plan import Instance

DENSITY = 0.001


def instance_of(
    rng: np.random.Generator, layers: int, *, per_tensor: bool, is_late: bool
) -> Instance:
    """Random layers with costs of every kind, wire and computing about as long as each other."""
    numel = np.exp(rng.uniform(np.log(1e3), np.log(1e7), layers)).astype(np.int64)
    nbytes = 8 * DENSITY * numel * rng.uniform(0.5, 2, layers)
    wire, late = Line(*rng.uniform(0, [3e-3, 1e-7])), Line(*rng.uniform(0, [2e-3, 1e-7]))
    select = Line(*rng.uniform(0, [1.4e-4, 2e-9]))
    backward_s = rng.uniform(0, 4e-3, layers) * rng.choice([0.01, 1.0])
    if not is_late:
        return Instance(backward_s, numel, nbytes, wire, select, per_tensor)
    return Instance(backward_s, numel, nbytes, wire, select, per_tensor, late, nbytes / 2)


def every_end_s(instance: Instance) -> np.ndarray:
    """When a step ends under each of the 2^(layers - 1) plans."""
    size = instance.size
    plans = np.arange(2 ** (size - 1))
    compute_s, wire_s, late_s = np.zeros((3, plans.size))
    start = np.zeros(plans.size, np.int64)
    for stop in range(1, size + 1):
        ends = (plans >> (stop - 1)) & 1 == 1 if stop < size else np.ones(plans.size, bool)
        first = start[ends]
        compute_s[ends] += instance.compute_s(first, stop)
        wire_s[ends] = np.maximum(wire_s[ends], compute_s[ends]) + instance.wire_s(first, stop)
        late_s[ends] += instance.late_s(first, stop)
        start[ends] = stop
    return wire_s + late_s
