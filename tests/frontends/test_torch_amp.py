"""Mixed precision under Horovod's recipe: scalers act alike on all ranks, and skipped steps lose
nothing."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

BAD_STEPS = (4, 5, 9)
RECIPES = ("recipe_float16", "recipe_bfloat16")


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return launch("frontends/torch_amp.py", 2, "mpi")


@pytest.mark.parametrize("name", RECIPES)
def test_inf_on_one_rank_is_seen_in_that_tensor_on_all(outcome: Outcome, name: str) -> None:
    for result in measured(outcome, name):
        assert result["seen"] == [["2.weight"] if step in BAD_STEPS else [] for step in range(12)]
        assert result["nonfinite_steps"] == len(BAD_STEPS)


@pytest.mark.parametrize("name", RECIPES)
def test_the_scaler_halves_and_doubles_alike_on_all_ranks(outcome: Outcome, name: str) -> None:
    scales = {tuple(result["scales"]) for result in measured(outcome, name)}
    assert scales == {tuple(2.0**e for e in (10, 10, 11, 11, 10, 9, 9, 9, 10, 9, 9, 9))}


@pytest.mark.parametrize("name", RECIPES)
def test_a_step_that_the_scaler_skips_leaves_residuals_and_weights(
    outcome: Outcome, name: str
) -> None:
    for result in measured(outcome, name):
        assert result["kept"] == [[step in BAD_STEPS] * 2 for step in range(12)]


@pytest.mark.parametrize("name", RECIPES)
def test_replicas_end_alike(outcome: Outcome, name: str) -> None:
    assert len({result["end"] for result in measured(outcome, name)}) == 1
