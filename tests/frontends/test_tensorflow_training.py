"""TensorFlow on real ranks: law 3, plans, ``auto``, and Keras optimizers that are handed over."""

import json

import pytest
from _common import check_every_case, launched
from _tensorflow_settings import LAUNCHES
from harness import launch, launch_example

KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]

in_all = pytest.mark.parametrize("world", [*LAUNCHES, *KERAS_3], ids=str)


def outcome_in(world):
    ranks, controller, *version = world
    if version:
        return launched("frontends/keras_training.py", ranks, controller, *version, str(ranks))
    worker = "frontends/tensorflow_training.py"
    return launched(worker, ranks, controller, "tensorflow", str(ranks), controller)


@in_all
def test_density_one_trains_like_dense_and_every_law_holds_on_every_rank(world):
    check_every_case(outcome_in(world))


@pytest.mark.full
def test_one_thread_of_tensorflows_is_enough(monkeypatch):
    """It waits for the other ranks, when they tell each other what they found."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    cases = ["auto_decides_alike_by_its_own_clock", "auto_of_two_tapes_in_one_function"]
    arguments = ("tensorflow", "2", "gloo", *cases, "auto_trains_by_keras")
    check_every_case(launch("frontends/tensorflow_training.py", 2, "gloo", *arguments))


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
