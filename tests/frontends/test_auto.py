"""``Compression.auto`` on real ranks; the cases are in the launches of the trainings."""

import pytest
from _common import launched, measured, measured_of
from harness import launch

OF_TENSORFLOW = [(2, "gloo", "tensorflow"), (3, "mpi", "tensorflow")]
WORLDS = [(1, "mpi", "torch"), (2, "gloo", "torch"), (3, "mpi", "torch"), *OF_TENSORFLOW]
in_worlds = pytest.mark.parametrize("world", WORLDS, ids=str)
in_tensorflow = pytest.mark.parametrize("world", OF_TENSORFLOW, ids=str)
BY_ITS_CLOCK = "auto_decides_alike_by_its_own_clock"
TWO_TAPES = "auto_of_two_tapes_in_one_function"


def outcome_in(world):
    ranks, controller, framework = world
    arguments = (framework, str(ranks), *([controller] if framework == "tensorflow" else []))
    return launched(f"frontends/{framework}_training.py", ranks, controller, *arguments)


@in_worlds
@pytest.mark.parametrize(
    "kind",
    [
        "auto_changes_ways",  # and nothing is lost
        BY_ITS_CLOCK,
        "auto_sends_a_state_that_is_loaded_on_a_dense_way",
    ],
)
def test_a_law_holds_on_every_rank(world, kind):
    assert measured_of(outcome_in(world), kind)


@in_tensorflow
@pytest.mark.parametrize(
    "kind",
    [
        TWO_TAPES,
        "auto_trains",
        "auto_refuses_what_it_cannot",
        "auto_leaves_alone_who_is_not_in_its_process_set",
    ],
)
def test_a_law_holds_in_graphs(world, kind):
    assert measured_of(outcome_in(world), kind)


@pytest.mark.full
def test_one_thread_of_tensorflows_is_enough(monkeypatch):
    """It waits for the other ranks, when they tell each other what they found."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    cases = [BY_ITS_CLOCK, TWO_TAPES, "auto_trains_by_keras"]
    worker, arguments = "frontends/tensorflow_training.py", ("tensorflow", "2", "gloo", *cases)
    outcome = launch(worker, 2, "gloo", *arguments)
    for case in cases:
        assert len(measured(outcome, case)) == 2
