"""Keras optimizers that are handed over, on real ranks: they train as they would, through ``fit``
and a tape."""

from __future__ import annotations

import pytest
from _common import launched, measured, measured_of

pytestmark = pytest.mark.timeout(930)
TOLERANCE = 1e-4
"""Of the way that the weights went: roundings of float32."""


@pytest.fixture(scope="module")
def outcome():
    return launched("frontends/tensorflow_optimizers.py", 2, "gloo")


def test_everything_sent_trains_like_the_optimizer_itself(outcome):
    for name, results in measured_of(outcome, "beside_dense").items():
        for result in results:
            assert result["difference"] < TOLERANCE, name
            assert (result["sparse_steps"] > 0) == (not name.endswith("never_compressed")), name
            assert result["weights"] == results[0]["weights"], name


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("sgd_trains", ["momentum", "residual"]),
        ("adam_trains", ["largest", "mean", "residual", "square"]),
    ],
)
def test_few_entries_train_the_same_replicas(outcome, name, arrays):
    results = measured(outcome, name)
    for result in results:
        assert result["losses"][1] < result["losses"][0]
        assert result["weights"] == results[0]["weights"]
        assert result["density"] < 0.07
        assert result["arrays"] == arrays


def test_accuracy_at_stake_is_told_once_with_the_remedy(outcome):
    for result in measured(outcome, "warnings_of_accuracy"):
        for kind in ("momentum, kept", "adam, kept", "legacy adam, kept", "rmsprop, kept"):
            (text,) = result[kind]
            assert "optimizer=optimizer" in text, kind
        for kind in ("legacy adam, handed over", "rmsprop, handed over"):
            (text,) = result[kind]
            assert "no memory can do this optimizer's work" in text, kind
        for kind in (
            "plain, kept",
            "plain, handed over",
            "momentum, handed over",
            "adam, handed over",
        ):
            assert result[kind] == [], kind


@pytest.mark.parametrize("kind", ["sgd_compressed", "nesterov", "legacy", "adam", "adamw"])
def test_moments_are_taken_over_cleared_and_gone_on_from_as_without_a_compressor(outcome, kind):
    for result in measured(outcome, f"moments_{kind}"):
        if kind == "sgd_compressed":  # its velocity is of this rank's gradients, not of all
            result.pop("gone on")
        assert max(result.values()) < 1e-5, result


def test_moments_that_horovods_own_optimizer_lacks_are_told(outcome):
    for result in measured(outcome, "moments_that_horovod_leaves"):
        for kind in ("new", "legacy", "adam"):
            assert result[f"{kind}, 0 steps"] == []
            (text,) = result[f"{kind}, 3 steps"]
            assert "had moments of 3 steps" in text and "compressor.load" in text


def test_a_state_is_taken_at_another_momentum(outcome):
    assert measured(outcome, "resumed_at_another_momentum") == [True, True]


def test_gradients_of_a_tape_that_are_clipped_or_not_applied_are_told_once(outcome):
    for result in measured(outcome, "thrown_away"):
        assert result["applied"] == result["decayed"] == []
        (text,) = result["clipped"]
        assert text.startswith("gradients were multiplied by about 0.") and "clip_norm" in text
        (text,) = result["thrown away"]
        for remedy in ("plain tf.GradientTape", "before the tape", "learning rate of 0"):
            assert remedy in text


def test_what_no_memory_knows_is_refused_by_name(outcome):
    words = {
        "adam clipnorm": "the optimizer has clipnorm=1.0, and would clip Adam's updates",
        "clipnorm": "the optimizer has clipnorm=1.0, and would clip velocities",
        "global_clipnorm": "the optimizer has global_clipnorm=1.0, and would clip velocities",
        "clipvalue": "the optimizer has clipvalue=1.0, and would clip velocities",
        "behind a memory": "the optimizer has clipvalue=1.0, and would clip velocities",
        "another": "give the same object to both",
        "no compressor": "came through no compressor, and the SGD's work was handed over to one",
    }
    for result in measured(outcome, "what_no_memory_knows"):
        assert set(result) == set(words)
        for key, text in words.items():
            assert "InvalidOption" in result[key] and text in result[key], result[key]


def test_a_gradient_of_slices_is_refused_or_made_dense(outcome):
    for result in measured(outcome, "embedding_as_dense"):
        assert result["difference"] < 1e-6
    for result in outcome.results:
        words = result["embedding_as_slices"]["error"]
        assert "InvalidOption" in words and "sparse_as_dense=True" in words


def test_a_saved_model_keeps_its_momentum(outcome):
    for result in measured(outcome, "saved"):
        # the counter of steps, and a slot for each of four tensors
        for kind in ("new", "legacy"):
            assert result[kind] == [pytest.approx(0.9), True, 8, 5]
