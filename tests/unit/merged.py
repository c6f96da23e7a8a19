"""Configurations and trainings for tests of a single selection from a group of tensors."""

import cases
import numpy as np
import worlds

from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.session import Session

SPECS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8))
KEYS = [spec.key for spec in SPECS]
NUMEL = sum(spec.numel for spec in SPECS)
MERGED = [case for case in cases.SELECTORS if not SELECTORS.get(case.id).needs_gradient]
ABSENT = {3: ("t1", "t4"), 4: ("t0", "t1", "t2", "t3")}


def configure(case=None, density=0.05, **options):
    selector = "topk" if case is None else case.create(SELECTORS, density=density)
    options = {"select_over": "group", "groups": 1, **options}
    return worlds.configure(selector, density, **options)


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
                plan = worlds.configure(groups=plans[step % len(plans)])
                session.step.regroup(grouped(specs, plan))
            gradients = draw(specs, collective.rank, step)
            for key in absent.get(step, ()):
                del gradients[key]
            given.append(gradients)
            applied.append(session.reduce(given[-1]))
        states = session.step.transactions.settle_all()
        memories = {specs[i].key: state.memory.arrays() for i, state in states.items()}
        residuals = {key: arrays["residual"].copy() for key, arrays in memories.items() if arrays}
        kept = {key: worlds.bits_of(arrays) for key, arrays in memories.items()}
        return given, applied, residuals, session.step.stats.report(None), kept

    return worlds.run(ranks, script)


def bits(outcomes):
    return list(map(worlds.bits_of, outcomes[0][1])), [outcome[4] for outcome in outcomes]


def total(spec, arrays):
    found = [each[spec.key].astype(np.float64) for each in arrays if spec.key in each]
    return sum(array.reshape(spec.shape) for array in found)


def lost(outcomes):
    """Return by tensor the sum of gradients that was neither applied nor kept; it should be 0."""
    balance = {}
    for spec in SPECS:
        given = total(spec, [step for outcome in outcomes for step in outcome[0]])
        kept = total(spec, [outcome[2] for outcome in outcomes])
        balance[spec.key] = given - total(spec, outcomes[0][1]) - kept
    return balance
