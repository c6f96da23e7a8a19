"""Configurations and trainings for tests of a single selection from a group of tensors."""

import cases
import numpy as np
import worlds

from hvd_sparse.configuration import Configuration
from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.session import Session

SPECS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8))
KEYS = [spec.key for spec in SPECS]
NUMEL = sum(spec.numel for spec in SPECS)
MERGED = [case for case in cases.SELECTORS if not SELECTORS.get(case.id).needs_gradient]
ABSENT = {3: ("t1", "t4"), 4: ("t0", "t1", "t2", "t3")}


def configure(case=None, density=0.05, **options):
    plain = worlds.configure(
        density=density, **{"select_over": "group", "groups": 1, **options}
    ).describe()
    if case is None:
        return Configuration.create(**plain)
    selector = case.create(SELECTORS, density=density)
    schedule = plain["schedule"] if hasattr(selector, "density") else None
    return Configuration.create(**{**plain, "selector": selector, "schedule": schedule})


def train(
    configuration, ranks=3, plans=(), steps=8, absent=ABSENT, draw=worlds.integers, specs=SPECS
):
    """Train, and return by rank: the gradients, the results (sums), the residuals, the report, and
    all bytes of the memories."""

    def script(collective):
        session = Session(configuration, specs, collective, average=False)
        given, applied = [], []
        for step in range(steps):
            if plans:
                session.step.regroup(
                    grouped(specs, worlds.configure(groups=plans[step % len(plans)]))
                )
            gradients = draw(specs, collective.rank, step)
            given.append(
                {key: value for key, value in gradients.items() if key not in absent.get(step, ())}
            )
            applied.append(session.reduce(given[-1]))
        memories = {
            specs[i].key: state.memory.arrays()
            for i, state in session.step.transactions.settle_all().items()
        }
        residuals = {key: arrays["residual"].copy() for key, arrays in memories.items() if arrays}
        kept = {key: worlds.bits_of(arrays) for key, arrays in memories.items()}
        return given, applied, residuals, session.step.stats.report(None), kept

    return worlds.run(ranks, script)


def bits(outcomes):
    return list(map(worlds.bits_of, outcomes[0][1])), [outcome[4] for outcome in outcomes]


def lost(outcomes):
    """Return by tensor the sum of gradients that was neither applied nor kept; it should be 0."""
    balance = {}
    for spec in SPECS:
        given = sum(
            step[spec.key].astype(np.float64) for o in outcomes for step in o[0] if spec.key in step
        )
        applied = sum(
            step[spec.key].astype(np.float64) for step in outcomes[0][1] if spec.key in step
        )
        kept = sum(outcome[2][spec.key].astype(np.float64) for outcome in outcomes).reshape(
            spec.shape
        )
        balance[spec.key] = given - applied - kept
    return balance
