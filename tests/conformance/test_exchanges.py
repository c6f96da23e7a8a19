"""Every exchange gives all ranks the same, loses nothing unless declared, and never hangs."""

import pkgutil

import cases
import numpy as np
import pytest
import worlds
from conformance.exchange_checks import (
    COMMON,
    DENSITY,
    SPECS,
    assert_replicas,
    check_conservation,
    check_failures,
    check_nonfinite,
    check_range,
    check_replicas,
    configured,
    integers,
    lost,
    normals,
    run_steps,
)

from hvd_sparse.errors import (
    CorruptPayload,
    ExchangeTimeout,
    InvalidOption,
    PeerFailure,
    SparseError,
)
from hvd_sparse.registry import EXCHANGES, SELECTORS
from hvd_sparse.step import receiver
from hvd_sparse.step.session import Session

exchanges = pytest.mark.parametrize("case", cases.EXCHANGES, ids=str)
LARGE_WORLDS = [pytest.param(size, marks=pytest.mark.full) for size in (8, 16)]
worlds_of = pytest.mark.parametrize("world_size", [1, 2, 3, 5, *LARGE_WORLDS])


@exchanges
@worlds_of
def test_all_ranks_apply_the_same_bits_whatever_each_rank_sent(case, world_size):
    check_replicas(case.create(EXCHANGES), world_size)


@exchanges
@worlds_of
def test_what_is_applied_and_what_is_kept_is_what_was_given(case, world_size):
    check_conservation(case.create(EXCHANGES), world_size)


@exchanges
@pytest.mark.parametrize("world_size", [1, 3, LARGE_WORLDS[0]])
def test_what_a_codec_rounds_on_the_way_stays_with_a_rank_that_rounded_it(case, world_size):
    exchange, codec = case.create(EXCHANGES), {"id": "golomb", "values": "int8"}
    if exchange.id == "shared_index":  # sums values as they are
        with pytest.raises(InvalidOption, match="leave out the codec"):
            worlds.configure(exchange=exchange, codec=codec)
        return
    outcomes = run_steps(configured(exchange, codec=codec), world_size, normals)
    assert_replicas(outcomes)
    given = sum(
        float(np.abs(g[spec.key]).sum()) for o in outcomes for g in o["given"] for spec in SPECS
    )
    if exchange.conserves:
        assert lost(outcomes) < 1e-6 * given
    else:
        assert lost(outcomes) < given


@pytest.mark.parametrize(
    "case", [case for case in cases.EXCHANGES if not case.create(EXCHANGES).conserves], ids=str
)
def test_an_exchange_that_says_it_loses_mass_does(case):
    """Invariant 3, the other way round: a declaration that is not needed is none."""
    assert lost(run_steps(configured(case.create(EXCHANGES)), 8, integers)) > 0


@exchanges
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_rank_that_cannot_compress_takes_part_in_all_phases_and_all_raise(case, world_size):
    check_failures(case.create(EXCHANGES), world_size)


@exchanges
@pytest.mark.parametrize("rollback", [True, False])
def test_a_gradient_that_is_not_finite_is_seen_by_all_and_leaves_nothing_behind(case, rollback):
    exchange = case.create(EXCHANGES)
    if exchange.sums_first and not rollback:
        with pytest.raises(InvalidOption, match="a failed step's gradients would be lost"):
            configured(exchange, rollback=rollback)
        return
    check_nonfinite(exchange, 3, rollback=rollback)


@pytest.mark.parametrize("selector", COMMON, ids=str)
@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_gradient_that_is_not_finite_takes_part_in_a_sum_of_values_all_the_same(
    selector, rollback, world_size
):
    """The others bring as many values as they always do, and a sum is of arrays of one length."""
    exchange, chosen = EXCHANGES.create("shared_index"), selector.create(SELECTORS, density=DENSITY)
    check_nonfinite(exchange, world_size, rollback=rollback, selector=chosen)
    if rollback:
        check_range(configured(exchange, chosen), world_size)


@exchanges
@pytest.mark.parametrize(
    ("world_size", "scale"), [(2, 1.0), (3, 1.0), (5, 1.0), (4, 2.0**-3), (4, 2.0**4)]
)
def test_finite_gradients_whose_sum_is_not_leave_no_trace_and_are_seen_by_all(
    case, world_size, scale, monkeypatch
):
    monkeypatch.setattr(receiver, "aligned_empty", signalling)
    check_range(configured(case.create(EXCHANGES)), world_size, scale)


def signalling(numel, dtype):
    """Memory in which every entry is a NaN that warns as soon as it is reckoned with."""
    integer = f"uint{np.finfo(dtype).bits}"
    infinity = np.array(np.inf, dtype).view(integer)
    return np.full(numel, infinity + np.ones(1, integer), integer).view(dtype)


DENSE = {"allow_dense": True, "schedule": {"id": "dense_warmup", "warmup_steps": 100}}


@pytest.mark.parametrize("options", [DENSE, {"min_numel": 400}, {"codec": "block16"}], ids=str)
def test_so_they_are_in_dense_steps_and_by_other_codecs(options):
    check_range(configured(EXCHANGES.create("allgather"), **options), 3)


@pytest.mark.parametrize("world_size", [1, 2, 5, LARGE_WORLDS[0]])
def test_all_of_it_holds_where_one_selection_is_made_from_all_that_travels_together(world_size):
    exchange = EXCHANGES.create("allgather")
    check_replicas(exchange, world_size, select_over="group")
    check_conservation(exchange, world_size, select_over="group")
    check_failures(exchange, world_size, select_over="group")
    for rollback in (True, False):
        check_nonfinite(exchange, world_size, rollback, select_over="group")
    if world_size > 1:
        check_range(configured(exchange, select_over="group"), world_size)


PHASES = [(case, "tensor") for case in cases.EXCHANGES] + [(cases.EXCHANGES[0], "group")]


@pytest.mark.parametrize(("case", "over"), PHASES, ids=str)
@worlds_of
def test_all_ranks_ask_for_exactly_the_declared_phases_also_where_one_fails(case, over, world_size):
    configuration = configured(case.create(EXCHANGES), select_over=over)

    def script(collective):
        asked = []

        def note(kind, arguments, call):
            name = arguments[-1]
            if ".handshake." not in name and name.startswith("hvd_sparse."):
                asked.append((kind, name))
            return call()

        spy = worlds.Around(collective, note)
        session = Session(configuration, SPECS, spy, buckets=[(0, 1, 2)])
        broken = integers(collective.rank, 0)
        if collective.rank == world_size - 1:
            broken["t0"][3] = float("nan")
        for gradients in (integers(collective.rank, 0), broken):
            try:
                session.reduce(gradients)
            except PeerFailure:
                continue
        return asked, session.step.exchange.phases(configuration.selector, world_size)

    first, *others = worlds.run(world_size, script)
    asked, phases = first
    assert tuple(kind for kind, _ in asked) == 2 * phases
    assert len({name for _, name in asked}) == len(phases)
    assert all(other == first for other in others)


PLACES = {
    "shared_index": "hvd_sparse.exchanges.shared_index.read_indices",
    "gtopk": "hvd_sparse.exchanges.gtopk._Branch.take_in",
    "oktopk": "hvd_sparse.exchanges.oktopk._Plan.reduce",
    "hierarchical": "hvd_sparse.exchanges.hierarchical.read_values",
}


@pytest.mark.parametrize("id", PLACES)
def test_what_goes_wrong_between_two_phases_ends_on_all_ranks(id, monkeypatch):
    (case, *_) = [case for case in cases.EXCHANGES if case.id == id]
    configuration = configured(case.create(EXCHANGES))
    pkgutil.resolve_name(PLACES[id])  # or one rank would fail, and the others wait for it

    def broken(*arguments):
        raise CorruptPayload("damaged between two phases")

    def script(collective):
        session = Session(configuration, SPECS, collective)
        session.reduce(integers(collective.rank, 0))
        collective.allreduce(integers(0, 0)["t0"], "meet").wait(worlds.TIMEOUT_S)
        if collective.rank == 0:
            monkeypatch.setattr(PLACES[id], broken)
        collective.allreduce(integers(0, 0)["t0"], "meet again").wait(worlds.TIMEOUT_S)
        with pytest.raises(SparseError) as caught:
            session.reduce(integers(collective.rank, 1))
        return type(caught.value), str(caught.value)

    for kind, words in worlds.run(4, script):
        assert kind is not ExchangeTimeout
        assert "damaged between two phases" in words


def test_a_discarded_conversation_does_not_write_into_the_step_that_follows():
    configuration = configured(EXCHANGES.create("hierarchical", ranks_per_node=2))

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        given = integers(collective.rank, 0)
        for position in (2, 1, 0):
            _, ticket = session.driver.compress(position, given[f"t{position}"].reshape(-1))
        session.step.transactions.fail(ticket.run, RuntimeError("taken back"))
        return session.reduce(integers(collective.rank, 1))

    again = run_steps(configuration, 2, lambda rank, step: integers(rank, 1), 1)
    for outcome in worlds.run(2, script):
        for key, value in again[0]["applied"][0].items():
            assert worlds.same_bits(outcome[key], value)
