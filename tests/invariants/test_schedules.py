"""Invariant 32: densities depend on the step alone; dense steps in between lose nothing."""

import cases
import pytest
from conformance.exchange_checks import assert_replicas, integers, lost, run_steps
from worlds import configure

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import SCHEDULES
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
        ("exponential_warmup", {"value": 0.1, "stage_steps": 0}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": 1, "stages": -1}),
        ("exponential_warmup", {"value": 0.1, "stage_steps": 1, "formula": "mine"}),
        ("piecewise", {"boundaries": [5, 2], "densities": [1, 0.1, 0.1]}),
        ("piecewise", {"boundaries": [0], "densities": [1, 0.1]}),
        ("piecewise", {"boundaries": [2], "densities": [0.1]}),
        ("piecewise", {"boundaries": 3, "densities": [1, 0.1]}),
        ("piecewise", {"boundaries": [2], "densities": [1, 2]}),
    ],
    ids=str,
)
def test_schedules_that_no_run_could_follow_are_refused(id, options):
    with pytest.raises(InvalidOption, match=SCHEDULES.get(id).__name__):
        SCHEDULES.create(id, **options)


SWITCHES = {"id": "piecewise", "boundaries": (3, 6, 8), "densities": (0.1, 0.9, 0.1, 1.0)}
WARM_UP = {"id": "exponential_warmup", "stage_steps": 2}
MEMORIES = ["error_feedback", {"id": "momentum_correction", "momentum": 0.0}]
WAYS = [("allgather", memory, rollback) for memory in MEMORIES for rollback in (True, False)]
NODES = {"id": "hierarchical", "ranks_per_node": 2}


@pytest.mark.parametrize(
    ("schedule", "dense_steps", "exchange", "memory", "rollback"),
    [
        *((SWITCHES, 5, *way) for way in [*WAYS, (NODES, "error_feedback", True)]),
        *((WARM_UP, 2, *way) for way in WAYS),
    ],
    ids=str,
)
def test_steps_that_run_dense_send_the_residual_and_lose_nothing(
    schedule, dense_steps, exchange, memory, rollback
):
    """On 4 ranks a density of 1/4 runs dense; whole numbers, so that the sums are exact."""
    options = {"exchange": exchange, "memory": memory, "rollback": rollback}
    configuration = configure("dgc_sampled", 0.01, schedule=schedule, allow_dense=True, **options)
    outcomes = run_steps(configuration, 4, integers, steps=10)
    assert lost(outcomes) == 0
    for outcome in outcomes:
        tensors = outcome["session"].step.stats.report(None)["tensors"].values()
        assert {tensor["dense_steps"] for tensor in tensors} == {dense_steps}
        is_kept = any(left.any() for left in outcome["kept"].values())
        assert is_kept == (schedule is WARM_UP), "SWITCHES ends with dense steps"


ALONG = {"id": "learning_rate", "value": 0.1}


@pytest.mark.parametrize(
    ("exchange", "select_over"),
    [
        *((id, "tensor") for id in ("allgather", "shared_index", "gtopk", "oktopk")),
        ("allgather", "group"),
    ],
)
def test_densities_along_the_learning_rate_lose_nothing_and_replicas_are_alike(
    exchange, select_over
):
    """Whole numbers, so that the sums are exact; the rates are of all sizes, 0 among them."""
    rates = (0.5, 1.0, 3.0, 0.0, 1e-6, 20.0, 0.2)
    configuration = configure(
        schedule=ALONG, exchange=exchange, select_over=select_over, density=0.1, groups=1
    )
    paces = [Pace(rate, 1.0) for rate in rates]
    outcomes = run_steps(configuration, 3, integers, len(rates), pace_of=paces.__getitem__)
    assert lost(outcomes) == 0
    assert_replicas(outcomes)
