"""Times that ranks could have measured in their first steps, and runs of a policy with them."""

from unittest.mock import Mock

import worlds

from hvd_sparse.plan.costs import REPETITIONS
from hvd_sparse.plan.measuring import STEPS
from hvd_sparse.step.records import StepRun


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


def measure(policy, keys, rank):
    for number, key in enumerate(reversed(keys)):
        policy.measurements.arrive(key, 0.01 * number + 0.001 * rank)
        policy.measurements.send(key, 100.0)


def begin_step(policy, collective, *, was_good):
    policy._run = StepRun() if was_good else None
    configuration = policy._step.configuration
    owner = Mock(collective=collective, messenger=collective, configuration=configuration)
    policy._begin_step(owner)
    return policy.decision


def adopted(make, keys, ranks, outcomes):
    """Return by rank the step at which a policy adopts a plan or densities, and these."""

    def script(collective):
        policy, good = make(), False
        for step, is_good in enumerate(outcomes):
            found = begin_step(policy, collective, was_good=good)
            if found is not None:
                return step, found
            measure(policy, keys, collective.rank)
            good = is_good
        return None

    return worlds.run(ranks, script)
