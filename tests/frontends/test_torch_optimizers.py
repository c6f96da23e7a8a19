"""Optimizers that are handed over, on real ranks: they train as they would, and stay the user's."""

import pytest
from _common import check_refused, launched, measured, measured_of

TOLERANCE = 2e-5


@pytest.fixture
def outcome():
    return launched("frontends/torch_training.py", 2, "gloo", "torch", "2")


def test_everything_sent_trains_like_the_optimizer_itself_through_schedules_and_groups(outcome):
    for name, results in measured_of(outcome, "beside_dense").items():
        for result in results:
            assert result["of_the_way"] < TOLERANCE, name
            is_dense = name.endswith(("never_compressed", "on_a_dense_way"))
            assert (sum(result["sparse_steps"]) > 0) == (not is_dense), name
        assert len({result["digest"] for result in results}) == 1, name


def test_gradients_are_clipped_together_before_the_selection(outcome):
    for name, results in measured_of(outcome, "clipped").items():
        assert all(result["of_the_way"] < TOLERANCE for result in results), name


def test_gradients_that_are_thrown_away_leave_no_trace(outcome):
    results = measured(outcome, "thrown_away")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert result["of_the_way"] < TOLERANCE
        assert result["steps"] == [5 + 1], "the last one was not followed by another"


def test_what_no_memory_knows_or_does_not_fit_is_refused_by_name(outcome):
    check_refused(outcome)


def test_sparse_gradients_get_the_optimizers_momentum(outcome):
    for name, results in measured_of(outcome, "sparse_gradients").items():
        for result in results:
            assert result["of_the_way"] < TOLERANCE, name
            assert result["said"] == [], name


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["unfrozen", "added"])
def test_layers_that_horovod_was_not_told_of_get_the_optimizers_own_update(outcome, name, kind):
    for result in measured(outcome, f"{name}_{kind}"):
        assert result["of_the_way"] < TOLERANCE
        (text,) = result["said"]
        assert "came through no compressor" in text
        assert text.startswith("tensor '0.weight'" if name == "unfrozen" else "tensor of shape")
