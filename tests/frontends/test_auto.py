"""``Compression.auto`` on real ranks; the cases are in the launches of the trainings."""

import pytest
from _common import SCRIPT, launched, measured, measured_of
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
def test_nothing_is_lost_however_the_ways_change(world):
    usual = [way == "sparse" for way in SCRIPT]
    for name, results in measured_of(outcome_in(world), "auto_changes_ways").items():
        is_late = name.endswith("taken_back")
        of_other_dtypes = (640 * 4 + 300 * 8 + 30 * 4) / 970
        itemsize = of_other_dtypes if name.endswith("other_dtypes") else 4
        for result in results:
            assert not any(result["lost"]), result["lost"]
            assert result["alike"]
            kept = [waiting > 0 for waiting in result["waiting"]]
            assert kept == [*usual[:3], is_late, *usual[4:]], name
            assert (result["sparse_steps"], result["dense_steps"]) == (8 * 3, 3 * 3)
            if world[2] == "tensorflow":  # in PyTorch they are Horovod's own, which nobody counts
                assert result["dense_bytes"] == 970 * ((3 + 2) * itemsize + 3 * 2)


def check_own_clock(outcome):
    for result in measured(outcome, BY_ITS_CLOCK):
        assert result["alike"] and result["reviewed"] and result["lost"] == 0
        assert result["ways"] == ["dense", "fp16", "sparse"]
        assert result["again"] is None, "a new world needs a new trial"


@in_worlds
def test_ranks_decide_alike_by_their_own_clocks(world):
    check_own_clock(outcome_in(world))


@in_worlds
def test_a_state_that_is_loaded_on_a_dense_way_is_sent(world):
    for result in measured(outcome_in(world), "auto_sends_a_state_that_is_loaded_on_a_dense_way"):
        assert result["left"] == 0 < result["waiting"]


@in_tensorflow
def test_two_tapes_in_one_function_take_their_steps_in_the_programs_order(world):
    for result in measured(outcome_in(world), TWO_TAPES):
        assert result == {"alike": True, "steps_left": 0}


@in_tensorflow
def test_who_is_not_in_the_process_set_is_left_alone(world):
    results = measured(outcome_in(world), "auto_leaves_alone_who_is_not_in_its_process_set")
    assert [result["is_member"] for result in results] == [True, True, False][: world[0]]
    for result in results:
        assert result["left"] == (0 if result["is_member"] else 4)
        assert result["alike"]


@in_tensorflow
def test_replicas_learn_and_stay_identical_on_all_ways(world):
    for results in measured_of(outcome_in(world), "auto_trains").values():
        for result in results:
            assert result["digest"] == results[0]["digest"]
            assert result["losses"][-1] < result["losses"][0]
            assert result["left"] == 0, "a step was no step, or one was two"


@in_tensorflow
def test_what_cannot_step_aside_is_refused(world):
    for result in measured(outcome_in(world), "auto_refuses_what_it_cannot"):
        assert result["bare"].startswith("UnsupportedInput: ")
        assert "hvd.DistributedGradientTape" in result["bare"]
        assert result["other"].startswith("RankMismatch: ")
        assert '"trial_steps": 3' in result["other"]


@pytest.mark.full
def test_one_thread_of_tensorflows_is_enough(monkeypatch):
    """It waits for the other ranks, when they tell each other what they found."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    cases = [BY_ITS_CLOCK, TWO_TAPES, "auto_trains_by_keras"]
    worker, arguments = "frontends/tensorflow_training.py", ("tensorflow", "2", "gloo", *cases)
    outcome = launch(worker, 2, "gloo", *arguments)
    check_own_clock(outcome)
    for case in cases[1:]:
        assert len(measured(outcome, case)) == 2
