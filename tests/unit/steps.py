"""Three small tensors in two buckets, and sessions for them, which the tests of steps share."""

import numpy as np
import worlds

from hvd_sparse.step.session import Session

SPECS = worlds.tensors((6, 5), (8,), (3, 3))
BUCKETS = [(1, 2), (0,)]
FAULTY = 1


def start(collective, configuration=None):
    return Session(configuration or worlds.configure(), SPECS, collective, buckets=BUCKETS)


def gradients(collective, step):
    return worlds.integers(SPECS, collective.rank, step)


def measured_step(session, given, *, looks=True):
    """Without a look at the state before, which would end an open step, this is the first step."""
    kept = worlds.residuals(session) if looks else {}
    accumulated = {key: g.reshape(-1).astype(np.float64) for key, g in given.items()}
    for key, residual in kept.items():
        accumulated[key] += residual
    return accumulated, session.reduce(given), worlds.residuals(session)


def assert_conserved(steps):
    """Check law 1 over all ranks, which is exact for small whole numbers."""
    for key in steps[0][0]:
        accumulated = sum(before[key] for before, _, _ in steps)
        average = steps[0][1][key].astype(np.float64).reshape(-1)
        kept = sum(after[key].astype(np.float64) for _, _, after in steps)
        assert (len(steps) * average + kept).tolist() == accumulated.tolist(), key


def start_exchange(session, positions, given):
    flat = {position: given[SPECS[position].key].reshape(-1) for position in positions}
    wires = {position: session.driver.compress(position, flat[position]) for position in positions}
    collective = session.collective
    return {
        p: (collective.allreduce(wire, SPECS[p].key).wait(None), ticket)
        for p, (wire, ticket) in sorted(wires.items())
    }
