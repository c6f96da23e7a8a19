"""Keras 3 on real ranks: ``hvd_sparse.keras`` against gradients that are averaged by hand, as
Horovod has nothing to compare with."""

from __future__ import annotations

import json

import pytest
from _common import launched, measured, measured_of
from harness import launch_example

LAUNCHES = {2: "gloo", 3: "mpi"}
SPARSE = ["handed_sgd", "handed_accumulated", "handed_accumulated_scaled", "handed_pausing"]
SCALED = {
    "scaling": (4, 9),
    "scaling_handed_over": (4, 9),
    "scaling_accumulated": (0, 2, 4, 5, 7, 9, 10),
}
"""Batches that change no weight: some are infinite, others are only accumulated."""
SAVED = {"saved_sgd": 0.9, "saved_adam": None}
REFUSED = {
    "horovods_wrapper": (
        "UnsupportedInput",
        "Keras 3",
        "hvd_sparse.keras.DistributedOptimizer",
        "TF_USE_LEGACY_KERAS=1",
    ),
    "hvd_tensorflow": ("UnsupportedInput", "hvd_sparse.keras.DistributedOptimizer"),
    "twice": ("InvalidOption", "distributed already"),
    "a_name": ("InvalidOption", "str is no optimizer of Keras 3"),
    "passes": ("InvalidOption", "gradient_accumulation_steps=2"),
    "scaled_by_hand": ("InvalidOption", "put DistributedOptimizer around"),
    "scaled_by_compile": ("UnsupportedInput", "put DistributedOptimizer around"),
    "xla": ("UnsupportedInput", "jit_compile=False"),
    "another_optimizer": ("InvalidOption", "give the same object to both"),
    "two_groups": ("InvalidOption", "leave one of the two out"),
    "elastic_state": ("UnsupportedInput", "hvd_sparse.keras.elastic.KerasState"),
    "elastic_unbuilt": ("InvalidOption", "model.build(input_shape)"),
    "elastic_no_optimizer": ("InvalidOption", "optimizer="),
    "elastic_a_name": ("InvalidOption", "str is no optimizer of Keras 3"),
    "apply_of_its_own": ("UnsupportedInput", "not averaged", "update_step()"),
}
WEIGHTS = 1e-6
"""Of weights around 1 after eight steps at rate 0.05: a few roundings of float32 a step."""
WAY = 2e-4
"""Of the way that the weights went: roundings."""


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(3, marks=pytest.mark.full)],
    ids=lambda ranks: f"{ranks} ranks",
)
def outcome(request, tmp_path_factory):
    ranks = request.param
    folder = str(tmp_path_factory.mktemp("models"))
    worker = "frontends/keras3_training.py"
    return launched(worker, ranks, LAUNCHES[ranks], "keras3", str(ranks), folder)


def test_the_launch_ends_well(outcome):
    outcome.check()


def test_density_1_is_the_average_by_hand(outcome):
    for case, results in measured_of(outcome, "law").items():
        reduced = [result for result in results if result["is_reduced"]]
        assert len(reduced) == (2 if case == "law_two_groups" else len(results))
        for result in results:
            assert result["difference"] <= WEIGHTS, case
            if not result["is_reduced"]:  # it trains alone, by hand as well
                assert result["sparse_steps"] == result["effect"] == 0
                continue
            assert result["effect"] > 1000 * WEIGHTS, "the comparison proves nothing"
            assert result["sparse_steps"] == result["expected_steps"], case
            assert result["weights"] == reduced[0]["weights"]


def test_everything_sent_trains_like_the_optimizer_itself(outcome):
    for case, results in measured_of(outcome, "handed").items():
        for result in results:
            assert result["difference"] < WAY, case
            assert (result["sparse_steps"] > 0) == (case in SPARSE), case
            assert result["weights"] == results[0]["weights"]


@pytest.mark.parametrize("kind", ["compressed", "sgd", "adam", "adamw"])
def test_moments_are_taken_over_cleared_and_gone_on_from_as_without_a_compressor(outcome, kind):
    for result in measured(outcome, f"moments_{kind}"):
        if kind == "compressed":  # its velocity is of this rank's gradients, not of all
            result.pop("gone on")
        assert max(result.values()) < 1e-5, result


def test_few_entries_train_the_same_replicas(outcome):
    for case, results in measured_of(outcome, "trains").items():
        for result in results:
            assert result["losses"][1] < result["losses"][0], case
            assert result["weights"] == results[0]["weights"], case


def test_a_run_along_the_rate_of_a_keras_schedule_sends_the_mean_that_was_asked_for(outcome):
    for result in measured(outcome, "trains_along_rate"):
        assert result["density"] == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("case", SCALED)
def test_inf_on_one_rank_is_a_step_that_all_leave_out(outcome, case):
    results = measured(outcome, case)
    for result in results:
        assert result["is_kept"] == [step in SCALED[case] for step in range(12)]
        exponents = (10, 10, 11, 11, 10, 10, 10, 11, 11, 10, 10, 10, 10, 10)  # and loaded, twice
        assert result["fits"]
        assert result["scales"] == [2.0**exponent for exponent in exponents]
        assert result["weights"] == results[0]["weights"]


@pytest.mark.parametrize("case", SAVED)
def test_a_saved_model_loads_without_us_and_goes_on_bit_for_bit(outcome, case):
    for result in measured(outcome, case):
        assert not result["says_ours"]
        assert result["is_plain"] and result["is_loaded"]
        assert result["momentum"] == SAVED[case]
        assert result["iterations"] == result["went_back"] == 8
        assert result["ends"][0] == result["ends"][1]


def test_checkpoints_go_on_bit_for_bit(outcome):
    for result in measured(outcome, "checkpoint"):
        first, own, everybodys = result["ends"]
        assert own == first
        assert everybodys == first


def test_callbacks_of_ours_do_what_horovods_cannot(outcome):
    results = measured(outcome, "ours_among_callbacks")
    ranks = len(results)
    for result in results:
        assert result["weights"] == results[0]["weights"]
        assert result["optimizer"] == results[0]["optimizer"]
        assert result["loss"] == results[0]["loss"]
        rates = [0.05 * (1 + (ranks - 1) * min(n / 16, 1)) / ranks for n in range(1, 25)]
        assert result["rates"] == pytest.approx(rates)
        assert result["lr"] == pytest.approx([rates[7], 0.05, 0.05])


def test_fit_with_planned_groups_changes_no_bit(outcome):
    results = measured(outcome, "planned")
    for result in results:
        assert result["planned"] == result["None"] == results[0]["None"]
        assert result["groups"] == results[0]["groups"]
        assert result["groups"][:8] == 8 * [None] and len(result["groups"]) == 24
        assert sum(result["groups"][8]) == 2 and set(map(tuple, result["groups"][8:])) <= {
            (1, 1),
            (2,),
        }


def test_the_tape_takes_variables_of_keras_3(outcome):
    for result in measured(outcome, "tape"):
        assert result["difference"] <= WEIGHTS
        assert result["sparse_steps"] == 3


def test_what_nobody_would_average_is_refused_with_the_remedy(outcome):
    for result in measured(outcome, "refused"):
        assert set(result) == set(REFUSED)
        for case, (kind, *words) in REFUSED.items():
            assert result[case].startswith(f"{kind}: "), result[case]
            assert all(word in result[case] for word in words), result[case]


@pytest.mark.full
def test_the_example_trains(tmp_path):
    log = tmp_path / "digits.jsonl"
    words = ["--epochs=4", "--density=0.05", f"--log-json={log}"]
    outcome = launch_example("tensorflow2_keras3_digits.py", 2, "mpi", *words)
    assert outcome.code == 0, outcome.end
    *epochs, summary = [json.loads(line) for line in log.read_text().splitlines()]
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"] / 2
    assert summary["test_accuracy"] > 0.8
    assert summary["density_achieved"] < 0.06


def test_blocks_of_the_documentation_train_and_replicas_stay_equal(outcome):
    for case, results in measured_of(outcome, "documented").items():
        assert results[0]["sparse_steps"] > 0, case
        assert len({str(each["weights"]) for each in results}) == 1, case
