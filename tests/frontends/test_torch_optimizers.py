"""Optimizers that are handed over, on real ranks: they train as they would, and stay the user's."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

TOLERANCE = 2e-5
"""Of the way that the parameters went: roundings of float32 over eight steps, in another order than
torch's."""
BESIDE_DENSE = ["sgd", "sgd_summed", "sgd_corrected", "nesterov", "sgd_never_compressed"]
BESIDE_DENSE += ["adam_never_compressed", "adamw_never_compressed", "dampened"]
BESIDE_DENSE += ["sgd_on_a_dense_way"]
BESIDE_DENSE += ["amsgrad_never_compressed", "nadam_never_compressed", "muon_never_compressed"]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return launch("frontends/torch_optimizers.py", 2, "gloo")


@pytest.mark.parametrize("name", BESIDE_DENSE)
def test_everything_sent_trains_like_the_optimizer_itself_through_schedules_and_groups(
    outcome: Outcome, name: str
):
    results = measured(outcome, name)
    for result in results:
        assert result["difference"] < TOLERANCE
        is_dense = name.endswith(("never_compressed", "on_a_dense_way"))
        assert (result["sparse_steps"] > 0) == (not is_dense)
        assert result["groups"] == [0.1, 0.0], "the optimizer's groups are no longer the user's"
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "muon"])
def test_moments_go_over_to_a_compressor_and_come_back(outcome: Outcome, name: str):
    for result in measured(outcome, f"{name}_moved_over"):
        assert result["difference"] < TOLERANCE


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("sgd_resumed", ["momentum", "residual"]),
        ("sgd_with_velocity_resumed", ["momentum", "residual"]),
        ("adam_resumed", ["largest", "mean", "residual", "square"]),
        ("adamw_resumed", ["largest", "mean", "residual", "square"]),
        ("muon_resumed", ["largest", "mean", "residual", "square"]),
    ],
)
def test_training_goes_on_from_saved_states_and_learns(
    outcome: Outcome, name: str, arrays: list[str]
):
    results = measured(outcome, name)
    for result in results:
        assert len(set(result["digests"])) == 1
        assert result["losses"][1] < result["losses"][0]
        assert result["arrays"] == arrays
    assert len({result["digests"][0] for result in results}) == 1


def test_auto_lets_its_dense_steps_go_through_the_optimizers_memory(outcome: Outcome):
    results = measured(outcome, "ways_change")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert sum(result["losses"][-4:]) < sum(result["losses"][:4])
        assert result["steps"] == [16 * 4, 4 * 4]
        is_waiting = [count > 0 for count in result["waiting"]]
        assert is_waiting == [True] * 4 + [False] * 4 + [True] * 12


def test_a_run_of_which_the_steps_are_told_sends_along_its_learning_rate(outcome: Outcome):
    results = measured(outcome, "along_the_rate")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert result["codec"] == "sign_mean"
        achieved = result["achieved"]  # so far, on average: a cosine falls from twice the mean
        assert achieved[0] == pytest.approx(0.2, rel=0.25)
        assert achieved[-1] == pytest.approx(0.1, rel=0.15)
        assert result["losses"][-1] < result["losses"][0]
    ranks = [result["told"] for result in results]
    assert all("the density follows the learning rate" in told for told in ranks), ranks
    assert "which is 0.5 on this rank" in ranks[0]


def test_a_step_that_a_scaler_skips_leaves_no_trace(outcome: Outcome):
    for result in measured(outcome, "scaled_and_clipped"):
        assert len(set(result["digests"])) == 1
        assert result["skipped"] == [step == 4 for step in range(8)]
        assert result["memory"] == "AdamCorrection"


@pytest.mark.parametrize("name", ["clipped_sgd", "clipped_sgd_scaled", "clipped_adamw"])
def test_gradients_are_clipped_together_before_the_selection(outcome: Outcome, name: str):
    for result in measured(outcome, name):
        least, most = result["norms"]
        assert least < 0.25 < most, "every step, or none, is clipped: the comparison proves less"
        assert result["difference"] < TOLERANCE


def test_clipping_together_wants_an_optimizer_and_no_groups_of_horovods(outcome: Outcome):
    for bare, grouped in measured(outcome, "clipped_by_no_optimizer"):
        assert bare.startswith("InvalidOption: clip_grad_norm is 0.25 without optimizer=")
        assert grouped.startswith("InvalidOption: groups is given to hvd.DistributedOptimizer")


def test_gradients_that_are_thrown_away_leave_no_trace(outcome: Outcome):
    # The last one of the first program and the last was not followed by another.
    steps = {"skip_batches": [5 + 1], "climb_first": [8], "contest": [8 + 1, 8]}
    found = measured(outcome, "gradients_that_are_thrown_away")
    for program, counted in steps.items():
        results = [result[program] for result in found]
        assert len({result["digest"] for result in results}) == 1
        for result in results:
            assert result["difference"] < TOLERANCE, program
            assert result["steps"] == counted, program


def test_accuracy_at_stake_is_told_once_with_the_remedy(outcome: Outcome):
    for result in measured(outcome, "warnings_of_accuracy"):
        for kind in ("momentum, kept", "adam, kept", "rmsprop, kept"):
            (text,) = result[kind]
            assert "optimizer=optimizer" in text, kind
        (text,) = result["rmsprop, handed over"]
        assert "RMSprop: no memory can do this optimizer's work" in text
        for kind in (
            "plain, kept",
            "plain, handed over",
            "momentum, handed over",
            "adam, handed over",
        ):
            assert result[kind] == [], kind
        assert result["momentum, dense enough"] == []


def test_what_no_memory_knows_is_refused_by_name(outcome: Outcome):
    for said in measured(outcome, "what_no_memory_knows"):
        for text, word in zip(
            said,
            ("has differentiable", "is Horovod's already", "is list"),
        ):
            assert text.startswith("InvalidOption: ") and word in text


def test_the_optimizer_that_calls_must_be_the_one_that_was_handed_over(outcome: Outcome):
    for said in measured(outcome, "another_optimizer_calls"):
        assert said.startswith(
            "InvalidOption: the SGD that calls the compressor is not the optimizer"
        )


def test_gradients_that_no_compressor_saw_are_refused(outcome: Outcome):
    for said in measured(outcome, "gradients_come_through_no_compressor"):
        assert said.startswith(
            "InvalidOption: the SGD was handed to a compressor that its gradients do not come "
            "through"
        )


@pytest.mark.parametrize(
    "name",
    ["sparse_gradients", "sparse_gradients_alone", "sparse_as_dense", "sparse_as_dense_adamw"],
)
def test_sparse_gradients_get_the_optimizers_momentum(outcome: Outcome, name: str):
    for result in measured(outcome, name):
        assert result["difference"] < TOLERANCE
        assert result["said"] == []


def test_sparse_gradients_of_adam_are_refused_with_the_remedy(outcome: Outcome):
    for said in measured(outcome, "sparse_gradients_of_adam"):
        assert said.startswith("InvalidOption: ") and "sparse_as_dense=True" in said


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["unfrozen", "added"])
def test_layers_that_horovod_was_not_told_of_get_the_optimizers_own_update(
    outcome: Outcome, name: str, kind: str
):
    for result in measured(outcome, f"{name}_{kind}"):
        assert result["difference"] < TOLERANCE
        (text,) = result["said"]
        assert "came through no compressor" in text
        assert text.startswith("tensor '0.weight'" if name == "unfrozen" else "tensor of shape")


def test_a_compiled_step_is_the_step(outcome: Outcome):
    for result in measured(outcome, "compiled_steps"):
        assert result["handed over"] == 0
        assert result["kept"] < 1e-6  # torch's AdamW takes another way where it is compiled
