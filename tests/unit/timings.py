"""Times that ranks could have measured in their first steps."""

from hvd_sparse.plan.costs import REPETITIONS
from hvd_sparse.plan.measuring import STEPS


def told(specs, seen, gap_s=0.01, *, late_s=0.0, entry_bytes=2.0):
    numel = {spec.key: spec.numel for spec in reversed(specs) if spec.key in seen}
    return {
        "ready": {key: gap_s * number + late_s for number, key in enumerate(numel)},
        "work": {key: 1e-5 + 1e-9 * n for key, n in numel.items()},
        "encode": {},
        "decode": {key: 2e-9 * n for key, n in numel.items()},
        "nbytes": {key: entry_bytes * n for key, n in numel.items()},
        "seen": seen,
        "whole": {str(step): 0.0 for steps in seen.values() for step in steps},
        "steps": STEPS,
    }


def samples(start_s, byte_s):
    sizes = [100, 1_000, 10_000, 100_000, 1_000_000]
    return [(size, [start_s + byte_s * size] * REPETITIONS) for size in sizes]
