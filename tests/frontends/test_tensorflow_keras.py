"""Keras optimizers on real ranks: handed over, they train as they would."""

import json

import pytest
from _common import check_refused, launched, measured, measured_of
from harness import launch_example

KERAS_2 = (2, "gloo", "tensorflow")
KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]


def launch(world):
    ranks, controller, version = world
    if world == KERAS_2:
        worker = "frontends/tensorflow_training.py"
        return launched(worker, ranks, controller, version, str(ranks), controller)
    return launched("frontends/keras_training.py", ranks, controller, version, str(ranks))


@pytest.fixture(scope="module", params=[KERAS_2, *KERAS_3], ids=str)
def world(request):
    return request.param


@pytest.fixture
def outcome(world):
    return launch(world)


of_keras_2 = pytest.mark.parametrize("world", [KERAS_2], ids=str, indirect=True)
of_keras_3 = pytest.mark.parametrize("world", KERAS_3, ids=str, indirect=True)


def test_the_launch_ends_well(outcome):
    outcome.check()


@pytest.mark.parametrize("kind", ["handed", "moments_of"])
def test_an_optimizer_that_is_handed_over_trains_like_the_optimizer_itself(outcome, kind):
    assert measured_of(outcome, kind)


def test_few_entries_train_the_same_replicas(outcome):
    arrays = {
        "trains_sgd": ["momentum", "residual", "sent_in"],
        "trains_adam": ["largest", "mean", "residual", "square"],
    }
    found = measured_of(outcome, "trains")
    for case, expected in arrays.items():
        for result in found[case]:
            assert result["density"] < 0.07 and result["arrays"] == expected


def test_what_does_not_fit_is_refused_with_the_remedy(outcome):
    check_refused(outcome)


@of_keras_2
@pytest.mark.parametrize(
    "kind",
    [
        "accuracy_at_stake_is_told_once_with_the_remedy",
        "moments_that_horovods_own_optimizer_lacks_are_told",
        "again",  # an optimizer that Horovod wraps again starts anew, as without a compressor
        "resumed_by_a_new_counter",
        "the_scaler_that_compile_makes_is_found",
        "results",  # of a tape, which are clipped or not applied, are told once
        "a_saved_model",
    ],
)
def test_a_law_of_keras_2_holds_on_every_rank(outcome, kind):
    assert measured_of(outcome, kind)


@of_keras_2
def test_a_gradient_of_slices_is_refused_or_made_dense(outcome):
    measured(outcome, "embedding_as_dense")
    for result in outcome.results:
        words = result["embedding_as_slices"]["error"]
        assert "InvalidOption" in words and "sparse_as_dense=True" in words


@of_keras_3
def test_a_run_along_the_rate_of_a_keras_schedule_sends_the_mean_that_was_asked_for(outcome):
    for result in measured(outcome, "trains_along_rate"):
        assert result["density"] == pytest.approx(0.05, rel=0.1)


@of_keras_3
@pytest.mark.parametrize(
    "kind",
    [
        "scaling",  # Inf on one rank is a step that all leave out
        "saved",
        "checkpoint",
        "callbacks_of_ours_do_what_horovods_cannot",
        "fit_with_planned_groups_changes_no_bit",
        "tape",
        "local_layers",
        "documented",
    ],
)
def test_a_law_of_keras_3_holds_on_every_rank(outcome, kind):
    assert measured_of(outcome, kind)


@pytest.mark.full
def test_the_example_trains(tmp_path):
    log = tmp_path / "digits.jsonl"
    records = tmp_path / "records.jsonl"
    words = ["--epochs=4", "--density=0.05", f"--log-json={log}"]
    words += ["--momentum=0.5", f"--telemetry={records}"]
    outcome = launch_example("tensorflow2_keras3_digits.py", 2, "mpi", *words)
    assert outcome.code == 0, outcome.end
    *epochs, summary = [json.loads(line) for line in log.read_text().splitlines()]
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"] / 2
    assert summary["test_accuracy"] > 0.8
    assert summary["density_achieved"] < 0.06
    assert "test_accuracy" in records.read_text()
