"""Collectives that deliver the result of the previous step again, and a check of every exchange
with them."""

import worlds
from conformance.exchange_checks import SPECS, configured, integers

from hvd_sparse.errors import PeerFailure, RankMismatch, SparseError
from hvd_sparse.step.session import Session

WORLD = 4
BUCKETS = [(0, 1, 2)]


class Replaying(worlds.Around):
    def __init__(self, collective):
        super().__init__(collective, self._deliver)
        self._brought, self.again = {}, None

    def _deliver(self, kind, arguments, call):
        name, pending = arguments[-1], call()
        wait, is_late = pending.wait, name == self.again

        def waited(timeout_s):
            result = wait(timeout_s)
            if is_late:
                return self._brought[name].copy()
            self._brought[name] = result.copy()
            return result

        pending.wait = waited
        return pending


def step_of(session, step):
    try:
        session.reduce(integers(session.collective.rank, step))
    except SparseError as error:
        return error
    return None


def deliver_again(configuration, name, ranks, **options):
    """Return, by rank, the errors of the step in which a collective delivers its old result on
    ``ranks``, and of the next step."""

    def script(collective):
        end = Replaying(collective)
        session = Session(configuration, SPECS, end, **options)
        assert step_of(session, 0) is None
        before = worlds.bits_of(worlds.residuals(session))
        end.again = name if collective.rank in ranks else None
        error, end.again = step_of(session, 1), None
        after = worlds.bits_of(worlds.residuals(session))
        assert error is None or after == before, "a refused step left a trace"
        return error, step_of(session, 1)

    return worlds.run(WORLD, script)


def names_of(configuration):
    phases = len(configuration.exchange.phases(configuration.selector, WORLD))
    return [f"hvd_sparse.session.0{f'.{phase}' if phase else ''}" for phase in range(phases)]


def check_replay(configuration, name):
    """(ADR 4) If all ranks get a phase or the carrier of the previous step again, all ranks refuse
    it. Return what the ranks receive."""
    outcomes = deliver_again(configuration, name, range(WORLD), buckets=BUCKETS)
    for error, _ in outcomes:
        is_refused = isinstance(error, (RankMismatch, PeerFailure))
        assert is_refused, f"{name} of the last step was taken for this one's: {error!r}"
    return outcomes


def check_replays(exchange):
    configuration = configured(exchange)
    for name in [*names_of(configuration), "t1"]:
        check_replay(configuration, name)
