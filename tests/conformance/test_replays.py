"""Old bytes that are delivered a step late are refused by name."""

import cases
import pytest
import worlds
from conformance.exchange_checks import COMMON, SPECS, configured, integers
from conformance.replay_checks import BUCKETS, WORLD, check_replay, deliver_again, names_of

from hvd_sparse.errors import ExchangeTimeout, RankMismatch
from hvd_sparse.registry import EXCHANGES, SELECTORS
from hvd_sparse.step.session import Session

CONFIGURATIONS = {
    **{
        str(case): configured(case.create(EXCHANGES))
        for case in cases.EXCHANGES
        if case.id != "auto"
    },
    **{
        f"shared_index-{selector}": worlds.configure(
            selector.create(SELECTORS, density=0.25), exchange="shared_index"
        )
        for selector in COMMON
    },
}
EVERY = [
    (name, late)
    for name, configuration in CONFIGURATIONS.items()
    for late in names_of(configuration)
]


@pytest.mark.parametrize(("name", "late"), EVERY)
def test_a_phase_of_the_last_step_is_refused_on_all_ranks_where_it_comes_to_all(name, late):
    """Its bytes have right checksums, ranks and tensors: the step alone tells."""
    outcomes = check_replay(CONFIGURATIONS[name], late)
    receives = [error for error, _ in outcomes]
    assert any("step 0" in str(error) or "another step" in str(error) for error in receives)
    if name == "allgather":
        words = "rank 0 is at step 0"
        assert all(words in str(error) and "at step 1 with" in str(error) for error in receives)
        assert [then for _, then in outcomes] == [None] * WORLD


@pytest.mark.parametrize(("name", "late"), EVERY)
@pytest.mark.parametrize("victim", [0, WORLD - 1])
def test_a_phase_of_the_last_step_that_comes_to_one_rank_ends_on_all(name, late, victim):
    configuration = CONFIGURATIONS[name]
    outcomes = deliver_again(configuration, late, {victim}, buckets=BUCKETS)
    errors = [error for error, _ in outcomes]
    if late != names_of(configuration)[-1]:
        receives_nothing = configuration.exchange.id == "gtopk" and victim != 0
        assert [error is None for error in errors] == [receives_nothing] * WORLD, errors
    else:
        assert isinstance(errors[victim], RankMismatch), errors
        assert all((error is None) != (rank == victim) for rank, error in enumerate(errors)), errors
        assert all(isinstance(then, RankMismatch) for _, then in outcomes), outcomes
    assert not any(isinstance(error, ExchangeTimeout) for error in errors)


@pytest.mark.parametrize("density", [0.25, 1.0])
@pytest.mark.parametrize("ranks", [{1}, set(range(WORLD))], ids=["to one rank", "to all"])
def test_a_carrier_of_the_last_step_is_refused_and_what_travels_dense_behind_it(ranks, density):
    configuration = worlds.configure("topk", density, allow_dense=True)
    outcomes = deliver_again(configuration, "t1", ranks, buckets=BUCKETS)
    for rank, (error, then) in enumerate(outcomes):
        if rank in ranks:
            assert isinstance(error, RankMismatch) and "'t1'" in str(error)
        assert error is not None or isinstance(then, RankMismatch)


def test_the_step_is_that_of_the_tensors_that_travel_and_not_of_the_bucket_or_the_rank():
    def script(collective):
        session = Session(
            configured(EXCHANGES.create("allgather")), SPECS, collective, buckets=BUCKETS
        )
        given = integers(collective.rank, 0)
        for keys in (("t0", "t1", "t2"), ("t1",), ("t1", "t2"), ("t0",)):
            session.reduce({key: given[key] for key in keys})
        session.step.regroup([(0, 2), (1,)])
        for keys in (("t0", "t1", "t2"), ("t2",), ("t0", "t1", "t2")):
            session.reduce({key: given[key] for key in keys})
        return {key: steps for key, (steps, _, _) in worlds.snapshot(session).items()}

    assert worlds.run(3, script) == [{"t0": 4, "t1": 5, "t2": 5}] * 3
