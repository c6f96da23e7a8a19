"""Invariant 32: densities depend on the step alone; dense steps in between lose nothing."""

import cases
import pytest
import worlds
from worlds import configure, integers, residuals, tensors

from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.step.session import Session
from hvd_sparse.types import Pace


@pytest.mark.parametrize("case", cases.SCHEDULES, ids=str)
def test_a_schedule_is_a_pure_function_of_the_step(case):
    schedule = case.create(SCHEDULES)
    steps = [10**9, 0, 5, 99, 5, 0, 10**9]
    again = case.create(SCHEDULES)
    assert [schedule.density(s) for s in steps] == [again.density(s) for s in steps]
    assert all(0 < schedule.density(s) <= 1 for s in range(120))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("paper", [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001]),
        ("code", [0.31622776602, 0.1, 0.031622776602, 0.01, 0.0031622776602, 0.001]),
    ],
)
def test_both_published_warm_ups_have_their_published_values(formula, expected):
    schedule = SCHEDULES.create("exponential_warmup", value=0.001, stage_steps=7, formula=formula)
    for within in (0, 6):
        found = [schedule.density(7 * stage + within) for stage in range(6)]
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("id", "options", "densities"),
    [
        ("exponential_warmup", {"value": 0.01, "stage_steps": 1, "stages": 0}, [0.01, 0.01]),
        ("piecewise", {"boundaries": [2, 4], "densities": [1, 0.1, 0.2]}, [1, 1, 0.1, 0.1, 0.2]),
        ("dense_warmup", {"value": 0.01, "warmup_steps": 3}, [1, 1, 1, 0.01, 0.01]),
    ],
)
def test_densities_change_exactly_at_their_boundaries(id, options, densities):
    schedule = SCHEDULES.create(id, **options)
    assert [schedule.density(step) for step in range(len(densities))] == densities


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("dense_warmup", {"value": 0.1, "warmup_steps": -1}),
        ("dense_warmup", {"value": 0.1, "warmup_steps": 1.5}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": 0}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": True}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": 1, "stages": -1}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": 1, "formula": "mine"}),
        ("piecewise", {"boundaries": [5, 2], "densities": [1, 0.1, 0.1]}),
        ("piecewise", {"boundaries": [0], "densities": [1, 0.1]}),
        ("piecewise", {"boundaries": [2], "densities": [0.1]}),
        ("piecewise", {"boundaries": ["soon"], "densities": [1, 0.1]}),
        ("piecewise", {"boundaries": 3, "densities": [1, 0.1]}),
        ("piecewise", {"boundaries": [2], "densities": [1, 2]}),
    ],
    ids=str,
)
def test_schedules_that_no_run_could_follow_are_refused(id, options):
    with pytest.raises(InvalidOption, match=SCHEDULES.get(id).__name__):
        SCHEDULES.create(id, **options)


SWITCHES = {"id": "piecewise", "boundaries": (3, 6, 8), "densities": (0.1, 0.9, 0.1, 1.0)}
WARM_UP = {"id": "exponential_warmup", "value": 0.01, "stage_steps": 2}


@pytest.mark.parametrize(
    "memory", ["error_feedback", {"id": "momentum_correction", "momentum": 0.0}], ids=str
)
@pytest.mark.parametrize(
    ("schedule", "dense_steps"), [(SWITCHES, 5), (WARM_UP, 2)], ids=["switches", "warm-up"]
)
@pytest.mark.parametrize("rollback", [True, False])
def test_steps_that_run_dense_send_the_residual_and_lose_nothing(
    rollback, schedule, dense_steps, memory
):
    """On 4 ranks a density of 1/4 runs dense; whole numbers, so that the sums are exact."""
    specs, steps = tensors((40, 25)), 10
    options = {"schedule": schedule, "memory": memory, "rollback": rollback}
    configuration = configure("dgc_sampled", 0.1, allow_dense=True, **options)

    def script(collective):
        session = Session(configuration, specs, collective)
        given, reduced, left = 0, 0, []
        for step in range(steps):
            gradient = integers(specs, collective.rank, step)
            given = given + gradient["t0"].astype(float)
            reduced = reduced + session.reduce(gradient)["t0"].astype(float)
            left.append(residuals(session)["t0"])
        return given, reduced, left, session.step.stats.report(None)["dense_steps"]

    outcomes = worlds.run(4, script)
    kept = sum(left[-1].astype(float) for _, _, left, _ in outcomes).reshape(40, 25)
    assert (4 * outcomes[0][1] + kept).tolist() == sum(given for given, *_ in outcomes).tolist()
    for _, _, left, dense in outcomes:
        assert dense == dense_steps
        assert sum(not residual.any() for residual in left) == dense_steps


ALONG = {"id": "learning_rate", "value": 0.1}


@pytest.mark.parametrize("select_over", ["tensor", "group"])
@pytest.mark.parametrize("exchange", ["allgather", "shared_index", "gtopk", "oktopk"])
def test_densities_along_the_learning_rate_lose_nothing_and_replicas_are_alike(
    exchange, select_over
):
    """Whole numbers, so that the sums are exact; the rates are of all sizes, 0 among them."""
    if select_over == "group" and exchange != "allgather":
        return  # refused: these choose tensor by tensor
    specs, rates = tensors((40, 25), (30, 30)), (0.5, 1.0, 3.0, 0.0, 1e-6, 20.0, 0.2)
    configuration = configure(
        schedule=ALONG, exchange=exchange, select_over=select_over, density=0.1, groups=1
    )

    def script(collective):
        session = Session(configuration, specs, collective, average=False)
        total = {spec.key: 0.0 for spec in specs}
        given = {spec.key: 0.0 for spec in specs}
        for step, rate in enumerate(rates):
            session.step.pace_of = lambda position, rate=rate: Pace(rate, 1.0)
            gradient = integers(specs, collective.rank, step)
            reduced = session.reduce(gradient)
            total = {key: total[key] + reduced[key] for key in total}
            given = {key: given[key] + gradient[key] for key in given}
        return given, total, residuals(session)

    outcomes = worlds.run(3, script)
    for spec in specs:
        kept = sum(left[spec.key] for _, _, left in outcomes).reshape(spec.shape)
        given = sum(given[spec.key] for given, *_ in outcomes)
        for _, total, _ in outcomes:
            assert (total[spec.key] + kept).tolist() == given.tolist()


def test_ranks_at_other_learning_rates_are_told_the_tensor_and_the_rate():
    specs = tensors((40, 25))
    configuration = configure(schedule=ALONG, density=0.1)

    def script(collective):
        session = Session(configuration, specs, collective)
        session.step.pace_of = lambda position: Pace(0.5 + collective.rank, 1.0)
        with pytest.raises(RankMismatch, match=f"'t0'.*is {0.5 + collective.rank} on this rank"):
            session.reduce(integers(specs, collective.rank, 0))
        # The step was taken back: with the same rates the ranks go on.
        session.step.pace_of = lambda position: Pace(0.5, 1.0)
        session.reduce(integers(specs, collective.rank, 0))
        return session.step.stats.report(None)["tensors"]["t0"]["entries_sent"]

    assert worlds.run(2, script) == [50, 50]
