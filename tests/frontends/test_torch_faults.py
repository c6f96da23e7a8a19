"""Faults under Horovod's PyTorch optimizer: an error of the project's own on every rank, soon, and
no hang."""

from __future__ import annotations

from typing import Any

import _torch_changed
import _torch_mismatches
import _torch_pauses
import _torch_recoveries
import pytest
from _outcomes import measured
from harness import CONTROLLERS, Outcome, launch

import hvd_sparse.errors

WORLDS = [(2, "gloo"), (3, "mpi"), (4, "gloo")]
PROCESS_SET_CASES = list(_torch_mismatches.process_set_cases(None))
REDUCTIONS = [
    name for name in _torch_mismatches.cases if name.startswith(("optimizer_with", "carrier_with"))
]
DIFFERENCES = [
    "another_density_on_one_rank",
    "another_option_on_one_rank",
    "a_layer_that_only_one_rank_has",
    "other_shapes_on_one_rank",
    "other_shapes_and_names_by_default_on_one_rank",
    "another_compressor_on_one_rank",
    "subnormal_numbers_flushed_on_one_rank",
    "another_step_on_one_rank",
]
BY_HOROVOD = ("NotImplementedError", "HorovodInternalError: No Adasum operation enabled")
"""Horovod's own words on Adasum: for powers of two alone, and not by Gloo."""
DENSE_AND_LAST = "unknown_0.weight_on_one_rank"
OUTLIVED = "an_optimizer_that_outlives_its_compressor"
UNUSED = "an_unused_compressor_on_one_rank"
UNKNOWN = [name for name in _torch_mismatches.cases if "unknown" in name]
CHANGED_ALONE = [name for name in _torch_changed.cases if "one_rank" in name]
NOT_MADE = ["a_method_that_is_not_called", "the_class_of_methods"]
CHANGED = [name for name in _torch_changed.cases if name not in (*CHANGED_ALONE, *NOT_MADE)]
OWN_ERRORS = {name for name, kind in vars(hvd_sparse.errors).items() if isinstance(kind, type)}


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def outcome(request: pytest.FixtureRequest) -> Outcome:
    ranks, controller = request.param
    return launch("frontends/torch_faults.py", ranks, controller, str(ranks))


def check_own_error(result: dict[str, Any], *kinds: str) -> None:
    kind, _, words = result["raised"].partition(": ")
    assert kind in OWN_ERRORS, result["raised"]
    assert not kinds or kind in kinds, result["raised"]
    assert words


def test_every_fault_is_checked() -> None:
    assert sorted(_torch_mismatches.cases) == sorted(
        [*REDUCTIONS, *DIFFERENCES, OUTLIVED, UNUSED, *UNKNOWN]
    )


def test_the_launch_ends_well(outcome: Outcome) -> None:
    outcome.check()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_that_are_no_sum_are_refused(outcome: Outcome, name: str) -> None:
    for result in measured(outcome, name):
        if name == "carrier_with_adasum" and result["raised"].startswith(BY_HOROVOD):
            continue
        check_own_error(result, "UnsupportedReduction")
        assert "hvd.Average" in result["raised"] and "hvd.Sum" in result["raised"]
        assert result["is_usable"]


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_between_ranks_are_refused(outcome: Outcome, name: str) -> None:
    for result in measured(outcome, name):
        check_own_error(result, "RankMismatch")
        assert result["is_usable"]


def test_a_compressor_that_one_rank_alone_has_made_and_does_not_use_disturbs_nobody(
    outcome: Outcome,
) -> None:
    for result in measured(outcome, UNUSED):
        assert result["raised"] == "nothing was raised"
        assert result["is_usable"]


def test_an_optimizer_that_outlives_its_compressor_is_refused_with_the_remedy(
    outcome: Outcome,
) -> None:
    for result in measured(outcome, OUTLIVED):
        check_own_error(result, "InvalidOption")
        assert "gc.collect()" in result["raised"]
        assert result["is_usable"]


def test_what_one_rank_alone_cannot_place_and_goes_dense_last_fails_there_and_is_right_elsewhere(
    outcome: Outcome,
) -> None:
    """All messages have gone when it comes, and a dense gradient has no carrier: docs/adr/0005."""
    *others, at_fault = measured(outcome, DENSE_AND_LAST)
    check_own_error(at_fault, "PeerFailure")
    assert "UnknownGradient" in at_fault["raised"]
    assert {result["raised"] for result in others} == {"nothing was raised"}


@pytest.mark.parametrize("name", [name for name in UNKNOWN if name != DENSE_AND_LAST])
def test_unknown_gradients_are_refused_on_every_rank(outcome: Outcome, name: str) -> None:
    for result in measured(outcome, name):
        check_own_error(result, "PeerFailure", "UnknownGradient")
        assert result["is_usable"]


@pytest.mark.parametrize("name", PROCESS_SET_CASES)
def test_process_sets_that_differ_are_refused(outcome: Outcome, name: str) -> None:
    for result in measured(outcome, name):
        if result.get("is_member", True):
            check_own_error(result, "RankMismatch", "UnsupportedReduction")
            assert "process_set" in result["raised"]
        assert result["is_usable"]


@pytest.mark.parametrize("name", CHANGED)
def test_gradients_changed_before_synchronize_are_refused_and_the_step_leaves_no_trace(
    outcome: Outcome, name: str
) -> None:
    for result in measured(outcome, name):
        check_own_error(result, "ChangedGradient")
        assert "call optimizer.synchronize() first" in result["raised"]
        assert "'1.weight'" in result["raised"]
        assert result["is_usable"]
        if "auto" not in name:
            assert result["is_kept"]
            assert result["steps"] == 4


@pytest.mark.parametrize("name", CHANGED_ALONE)
def test_a_rank_that_changes_gradients_alone_leaves_nobody_waiting(
    outcome: Outcome, name: str
) -> None:
    *others, at_fault = measured(outcome, name)
    check_own_error(at_fault["first"], "ChangedGradient")
    assert {result["first"]["raised"] for result in others} == {"nothing was raised"}
    for result in [*others, at_fault]:
        check_own_error(result["then"], "RankMismatch")
        assert result["is_usable"]


@pytest.mark.parametrize("name", NOT_MADE)
def test_what_was_not_made_by_calling_a_method_is_refused_with_the_call(
    outcome: Outcome, name: str
) -> None:
    for result in measured(outcome, name):
        check_own_error(result, "InvalidOption")
        assert "compression=Compression.ldte_bs(params, " in result["raised"]
        assert result["is_usable"]


@pytest.mark.parametrize("name", _torch_recoveries.cases)
def test_a_failed_step_is_taken_back_and_training_goes_on(outcome: Outcome, name: str) -> None:
    rank_at_fault = len(outcome.results) - 1
    for result in measured(outcome, name):
        check_own_error(result, "PeerFailure")
        assert f"rank {rank_at_fault}" in result["raised"]
        assert bool(result["dense_steps"]) == ("in_a_dense_step" in name)
        assert result["residuals_kept"] == ("without_rollback" not in name)
        assert result["lost"] == 0
        assert result["steps"] == 5


@pytest.mark.parametrize("name", _torch_pauses.cases)
def test_nobody_rests_for_long_who_is_waited_for(outcome: Outcome, name: str) -> None:
    """docs/adr/0022: some rank's rest was in vain, and all went on."""
    results = measured(outcome, name)
    assert len({result["digest"] for result in results}) == 1
    assert {steps for result in results for steps in result["steps"]} == {_torch_pauses.STEPS}
    assert any(skipped for result in results for skipped in result["vain"])


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("step", [0])
def test_a_rank_that_never_comes_ends_in_a_timeout(controller: str, step: int) -> None:
    outcome = launch("frontends/torch_absent_rank.py", 2, controller, str(step))
    waiting, absent = outcome.results
    assert absent == "absent"
    assert waiting is not None, "the waiting rank was still waiting when the absent one ended"
    check_own_error(waiting, "ExchangeTimeout")
    assert outcome.code not in (0, None)


def test_a_rank_rests_at_its_last_gradient_beside_frozen_parameters(outcome: Outcome) -> None:
    for result in measured(outcome, "frozen_parameters"):
        assert result["rests"] == list(range(_torch_pauses.STEPS))


def test_a_step_that_is_given_up_leaves_no_loss_scale(outcome: Outcome) -> None:
    for result in measured(outcome, "a_step_is_given_up"):
        assert result["scale"] == [2.0, 2.0]
        assert not any(result["left"])
