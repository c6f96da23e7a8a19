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


def check_next_step(fault, configuration=None, world_size=2, *, looks=True):
    """Check law 1 in the step that follows ``fault(session)``, over all ranks. It is exact for
    small whole numbers. Return what ``fault`` has returned, by rank.

    looks : whether residuals are read before the step, which would end an open step
    """

    def script(collective):
        session = start(collective, configuration)
        found, given = fault(session), gradients(collective, 9)
        before = worlds.residuals(session) if looks else {}
        return found, given, before, session.reduce(given), worlds.residuals(session)

    outcomes = worlds.run(world_size, script)
    for key, average in outcomes[0][3].items():
        accumulated = sum(g[key].reshape(-1) + b.get(key, 0.0) for _, g, b, *_ in outcomes)
        kept = sum(after[key].astype(np.float64) for *_, after in outcomes)
        assert (world_size * average.reshape(-1) + kept).tolist() == accumulated.tolist(), key
    return [found for found, *_ in outcomes]


def start_exchange(session, positions, given):
    flat = {position: given[SPECS[position].key].reshape(-1) for position in positions}
    wires = {position: session.driver.compress(position, flat[position]) for position in positions}
    collective = session.collective
    return {
        p: (collective.allreduce(wire, SPECS[p].key).wait(None), ticket)
        for p, (wire, ticket) in sorted(wires.items())
    }
