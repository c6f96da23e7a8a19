"""Faults under Horovod's tape and Keras: an error of the project's own on every rank, soon, and no
hang."""

from __future__ import annotations

from typing import Any

import pytest
from _outcomes import measured
from _tensorflow_launches import Launches, World, in_worlds
from harness import launch

WORLDS = [(2, "gloo"), (3, "mpi"), (4, "mpi")]
LARGER = WORLDS[1:]
"""Two ranks have no smaller process set of more than one."""
REDUCTIONS = [
    f"{reduction}_{when}"
    for reduction in ("min", "max", "product", "adasum")
    for when in ("eagerly", "in_a_function_with_groups", "in_a_later_step")
]
DIFFERENCES = [
    "another_density_on_one_rank",
    "another_option_on_one_rank",
    "a_layer_that_only_one_rank_has",
    "other_shapes_on_one_rank",
    "other_shapes_and_names_by_default_on_one_rank",
    "another_density_on_one_rank_of_keras",
    "another_step_on_one_rank",
]
PROCESS_SETS = [
    f"process_set_smaller_of_the_{place}{when}"
    for when in ("", "_in_a_later_step")
    for place in ("tape", "compressor")
]
UNKNOWN = [
    "unknown_gradient_on_all_ranks",
    "unknown_gradient_on_all_ranks_in_a_later_step",
    "unknown_gradient_on_one_rank_in_a_later_step",
    "unknown_gradient_on_one_rank",
    "unknown_gradient_on_one_rank_in_a_group",
]
RECOVERIES = {
    "selector_eagerly": "RuntimeError: the selector broke",
    "selector_in_a_function": "RuntimeError: the selector broke",
    "selector_in_a_group": "RuntimeError: the selector broke",
    "selector_in_groups": "RuntimeError: the selector broke",
    "nan_in_a_group": "NonFiniteGradient: ",
    "nan_in_groups": "NonFiniteGradient: ",
    "nan_eagerly": "NonFiniteGradient: ",
    "nan_in_a_function": "NonFiniteGradient: ",
    "nan_without_a_second_buffer": "NonFiniteGradient: ",
}
GOOD_STEPS = 5
LATE = "a_late_gradient_on_one_rank"
ALL_CASES = {
    world: [
        *RECOVERIES,
        *REDUCTIONS,
        *DIFFERENCES,
        LATE,
        *(PROCESS_SETS if world in LARGER else []),
        *UNKNOWN,
    ]
    for world in WORLDS
}
"""In the order in which they run."""


@pytest.fixture(scope="module")
def launches() -> Launches:
    return Launches(ALL_CASES)


def check_error(result: dict[str, Any], *kinds: str) -> None:
    """By its class, or by its class's name in the words of TensorFlow's error."""
    assert any(kind == result["raised"] or f"{kind}: " in result["words"] for kind in kinds), result


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_launch_ends_well_and_all_its_cases_are_checked(
    launches: Launches, world: World
) -> None:
    launches.check(world)


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, REDUCTIONS))
def test_reductions_that_are_no_sum_are_refused(
    launches: Launches, world: World, case: str
) -> None:
    for result in measured(launches[world], case):
        check_error(result, "UnsupportedReduction")
        assert "hvd.Average" in result["words"] and "hvd.Sum" in result["words"]
        assert result["is_usable"]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, DIFFERENCES))
def test_differences_between_ranks_are_refused(launches: Launches, world: World, case: str) -> None:
    for result in measured(launches[world], case):
        check_error(result, "RankMismatch")
        assert result["is_usable"]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, UNKNOWN))
def test_unknown_gradients_are_refused_on_every_rank(
    launches: Launches, world: World, case: str
) -> None:
    for result in measured(launches[world], case):
        check_error(result, "PeerFailure", "UnknownGradient")
        assert "give the compressor all variables" in result["words"]
        assert result["is_usable"]


@pytest.mark.parametrize(("world", "case"), in_worlds(LARGER, PROCESS_SETS))
def test_process_sets_that_differ_are_refused(launches: Launches, world: World, case: str) -> None:
    for result in measured(launches[world], case):
        check_error(result, "RankMismatch", "UnsupportedReduction")
        assert "process_set" in result["words"]
        assert result["is_usable"]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, RECOVERIES))
def test_a_failed_step_is_taken_back_and_training_goes_on(
    launches: Launches, world: World, case: str
) -> None:
    rank_at_fault = world[0] - 1
    for result in measured(launches[world], case):
        check_error(result, "PeerFailure")
        assert f"rank {rank_at_fault}" in result["words"]
        assert RECOVERIES[case] in result["words"]
        assert result["is_unchanged"] == (case != "nan_without_a_second_buffer")
        assert result["lost"] == 0
        assert result["is_usable"]
        assert set(result["steps"].values()) == {GOOD_STEPS}, "a failed step counts"


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_gradient_that_comes_late_leaves_no_rank_waiting(
    launches: Launches, world: World
) -> None:
    for result in measured(launches[world], LATE):
        check_error(result, "PeerFailure")
        assert result["next_step"]["raised"] == "nothing", result["next_step"]["words"]
        assert result["is_usable"]


def test_a_rank_that_never_comes_ends_in_a_timeout() -> None:
    """As an error of the waiting rank's step, or in its last words where nothing else releases it
    from Horovod."""
    outcome = launch("frontends/tensorflow_hangs.py", 2, "gloo", "never_comes")
    waiting, absent = outcome.results
    assert absent == "absent"
    assert "ExchangeTimeout" in outcome.output + str(waiting)
    assert outcome.code not in (0, None)
