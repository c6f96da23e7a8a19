"""Keras optimizers on real ranks: handed over, they train as they would."""

import json

import pytest
from _common import check_refused, launched, measured, measured_of
from harness import launch_example

KERAS_2 = (2, "gloo", "tensorflow")
KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]
SCALED = {
    "scaling": (4, 9),
    "scaling_handed_over": (4, 9),
    "scaling_accumulated": (0, 2, 4, 5, 7, 9, 10),
}
"""Batches that change no weight: some are infinite, others are only accumulated."""
WAY = 2e-4


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


def test_everything_sent_trains_like_the_optimizer_itself(outcome):
    for case, results in measured_of(outcome, "handed").items():
        for result in results:
            assert result["difference"] < WAY, case
            assert (result["sparse_steps"] > 0) == (not case.endswith("never_compressed")), case
            assert result["weights"] == results[0]["weights"], case


def test_moments_are_taken_over_cleared_and_gone_on_from_as_without_a_compressor(outcome):
    for case, results in measured_of(outcome, "moments_of").items():
        for result in results:
            if case.endswith("compressed"):  # its velocity is of this rank's gradients, not of all
                result.pop("gone on")
            assert max(result.values()) < 1e-5, (case, result)


def test_few_entries_train_the_same_replicas(outcome):
    arrays = {
        "trains_sgd": ["momentum", "residual"],
        "trains_adam": ["largest", "mean", "residual", "square"],
    }
    for case, results in measured_of(outcome, "trains").items():
        for result in results:
            assert result["losses"][1] < result["losses"][0], case
            assert result["weights"] == results[0]["weights"], case
            if case in arrays:
                assert result["density"] < 0.07 and result["arrays"] == arrays[case]


def test_what_does_not_fit_is_refused_with_the_remedy(outcome):
    check_refused(outcome)


@of_keras_2
def test_accuracy_at_stake_is_told_once_with_the_remedy(outcome):
    for result in measured(outcome, "warnings_of_accuracy"):
        assert ["optimizer=optimizer" in text for text in result["kept"]] == [True] * 4
        assert result["kept, by name"] == result["kept"][:1]
        told = ["no memory can do this optimizer's work" in text for text in result["handed over"]]
        assert told == [True] * 2
        assert result["at ease"] == []


@of_keras_2
def test_moments_that_horovods_own_optimizer_lacks_are_told(outcome):
    for result in measured(outcome, "moments_that_horovod_leaves"):
        for kind in ("new", "legacy", "adam"):
            assert result[f"{kind}, 0 steps"] == []
            (text,) = result[f"{kind}, 3 steps"]
            assert "had moments of 3 steps" in text and "compressor.load" in text


@of_keras_2
def test_an_optimizer_that_horovod_wraps_again_starts_anew_as_without_a_compressor(outcome):
    for case, results in measured_of(outcome, "again").items():
        for result in results:
            assert result["difference"] < 1e-5, case


@of_keras_2
def test_a_state_is_gone_on_from_by_an_optimizer_that_counts_from_zero(outcome):
    for difference in measured(outcome, "resumed_by_a_new_counter"):
        assert difference < 1e-6


@of_keras_2
def test_the_scaler_that_compile_makes_is_found(outcome):
    for result in measured(outcome, "mixed_precision"):
        assert result["moved"] > 0.01 and result["apart"] < 1e-3 * result["moved"]


@of_keras_2
def test_gradients_of_a_tape_that_are_clipped_or_not_applied_are_told_once(outcome):
    said = measured_of(outcome, "results")
    assert said["results_applied"] == said["results_decayed"] == [[], []]
    for (text,) in said["results_clipped"]:
        assert text.startswith("gradients were multiplied by about 0.") and "clip_norm" in text
    for (text,) in said["results_thrown_away"]:
        for remedy in ("plain tf.GradientTape", "before the tape", "learning rate is 0"):
            assert remedy in text


@of_keras_2
def test_a_gradient_of_slices_is_refused_or_made_dense(outcome):
    for result in measured(outcome, "embedding_as_dense"):
        assert result["difference"] < 1e-6
    for result in outcome.results:
        words = result["embedding_as_slices"]["error"]
        assert "InvalidOption" in words and "sparse_as_dense=True" in words


@of_keras_2
def test_a_saved_model_keeps_its_momentum(outcome):
    for result in measured(outcome, "saved"):
        # the counter of steps, and a slot for each of four tensors
        for kind in ("new", "legacy"):
            assert result[kind] == [pytest.approx(0.9), True, 8, 5]


@of_keras_2
def test_a_saved_model_can_be_written_between_two_epochs(outcome):
    for result in measured(outcome, "exported"):
        assert result == {"difference": 0.0, "is_same": True}


@of_keras_3
def test_a_run_along_the_rate_of_a_keras_schedule_sends_the_mean_that_was_asked_for(outcome):
    for result in measured(outcome, "trains_along_rate"):
        assert result["density"] == pytest.approx(0.05, rel=0.1)


@of_keras_3
@pytest.mark.parametrize("case", SCALED)
def test_inf_on_one_rank_is_a_step_that_all_leave_out(outcome, case):
    results = measured(outcome, case)
    for result in results:
        assert result["is_kept"] == [step in SCALED[case] for step in range(12)]
        exponents = (10, 10, 11, 11, 10, 10, 10, 11, 11, 10, 10, 10, 10, 10)  # and loaded, twice
        assert result["fits"]
        assert result["scales"] == [2.0**exponent for exponent in exponents]
        assert result["weights"] == results[0]["weights"]


@of_keras_3
def test_a_saved_model_loads_without_us_and_goes_on_bit_for_bit(outcome):
    for case, momentum in (("saved_sgd", 0.9), ("saved_adam", None)):
        for result in measured(outcome, case):
            assert not result["says_ours"]
            assert result["is_plain"] and result["is_loaded"]
            assert result["momentum"] == momentum
            assert result["iterations"] == result["went_back"] == 8
            assert result["ends"][0] == result["ends"][1]


@of_keras_3
def test_checkpoints_go_on_bit_for_bit(outcome):
    for result in measured(outcome, "checkpoint"):
        first, own, everybodys = result["ends"]
        assert own == everybodys == first


@of_keras_3
def test_callbacks_of_ours_do_what_horovods_cannot(outcome):
    results = measured(outcome, "ours_among_callbacks")
    ranks = len(results)
    for result in results:
        for kind in ("weights", "optimizer", "loss"):
            assert result[kind] == results[0][kind]
        rates = [0.05 * (1 + (ranks - 1) * min(n / 16, 1)) / ranks for n in range(1, 25)]
        assert result["rates"] == pytest.approx(rates)
        assert result["lr"] == pytest.approx([rates[7], 0.05, 0.05])


@of_keras_3
def test_fit_with_planned_groups_changes_no_bit(outcome):
    results = measured(outcome, "planned")
    for result in results:
        assert result["planned"] == result["None"] == results[0]["None"]
        groups = result["groups"]
        assert groups == results[0]["groups"]
        assert groups[:8] == 8 * [None] and len(groups) == 24
        assert sum(groups[8]) == 2 and set(map(tuple, groups[8:])) <= {(1, 1), (2,)}


@of_keras_3
def test_the_tape_takes_variables_of_keras_3(outcome):
    for result in measured(outcome, "tape"):
        assert result["difference"] <= 1e-6
        assert result["sparse_steps"] == 3


@of_keras_3
def test_blocks_of_the_documentation_train_and_replicas_stay_equal(outcome):
    for case, results in measured_of(outcome, "documented").items():
        assert results[0]["sparse_steps"] > 0, case
        assert len({str(each["weights"]) for each in results}) == 1, case


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
