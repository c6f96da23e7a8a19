"""``Compression.auto`` through TensorFlow: nothing is lost, all ranks go one way, and the dense
ways are Horovod's."""

from __future__ import annotations

import pytest
from _outcomes import measured
from _tensorflow_launches import Launches, World, in_worlds, launch_cases

WORLDS = [(2, "gloo"), (3, "mpi")]
CHANGES = [
    "auto_ways_change_in_a_function",
    "auto_ways_change_eagerly",
    "auto_ways_change_in_groups",
    "auto_ways_change_with_other_dtypes",
    "auto_ways_change_through_a_step_that_is_taken_back",
]
TRAININGS = ["auto_trains_by_tape", "auto_trains_by_keras", "auto_trains_by_keras_in_groups"]
BY_ITS_CLOCK = "auto_decides_alike_by_its_own_clock"
TWO_TAPES = "auto_of_two_tapes_in_one_function"
OTHERS = [
    "auto_gradients_are_horovods_on_every_way",
    "auto_trials_end_as_their_times_say",
    BY_ITS_CLOCK,
    "auto_sends_a_state_that_is_loaded_on_a_dense_way",
    TWO_TAPES,
    "auto_leaves_alone_who_is_not_in_its_process_set",
    "auto_refuses_what_it_cannot",
]
CASES = [*CHANGES, *TRAININGS, *OTHERS]


@pytest.fixture(scope="module")
def launches() -> Launches:
    return Launches(dict.fromkeys(WORLDS, CASES))


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_launch_ends_well_and_all_its_cases_are_checked(
    launches: Launches, world: World
) -> None:
    launches.check(world)


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, CHANGES))
def test_nothing_is_lost_however_the_ways_change(
    launches: Launches, world: World, case: str
) -> None:
    """The first step of a dense way sends what was kept back; where it leaves no trace, the next
    one does."""
    sends_late = case == CHANGES[-1]
    itemsize = (
        (640 * 4 + 300 * 8 + 30 * 4) / 970 if case == "auto_ways_change_with_other_dtypes" else 4
    )
    for result in measured(launches[world], case):
        assert not any(result["lost"]), result["lost"]
        assert result["alike"]
        kept = [waiting > 0 for waiting in result["waiting"]]
        assert kept == [
            *[True] * (4 if sends_late else 3),
            *[False] * (4 if sends_late else 5),
            *kept[8:],
        ]
        assert kept[8:] == [True] * 3 + [False] * 2 + [True, False, True]
        assert (result["sparse_steps"], result["dense_steps"]) == (8 * 3, 3 * 3)
        assert result["dense_bytes"] == 970 * ((3 + 2) * itemsize + 3 * 2)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_at_density_1_every_way_gives_horovods_gradients(launches: Launches, world: World) -> None:
    """As float16 the average over three is rounded, and so is the average of those that were
    divided before."""
    for result in measured(launches[world], "auto_gradients_are_horovods_on_every_way"):
        assert result["entries_sent"] > 3 * 2 * 800
        assert len(result["apart"]) == 15
        for number, apart in enumerate(result["apart"]):
            assert apart <= (2e-3 if number % 5 == 3 else 1e-6), result["apart"]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_trial_ends_as_its_times_say_on_all_ranks(launches: Launches, world: World) -> None:
    for result in measured(launches[world], "auto_trials_end_as_their_times_say"):
        for fastest, found in result.items():
            assert found["way"] == fastest
            assert found["alike"]
            assert (found["waiting"] > 0) == (fastest == "sparse")
            assert found["again"] is None, "a new world needs a new trial"
            assert found["lost"] == 0


def check_own_clock(result: dict[str, object]) -> None:
    assert result["alike"] and result["reviewed"] and result["lost"] == 0
    assert result["ways"] == ["dense", "fp16", "sparse"]


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_ranks_decide_alike_by_their_own_clocks(launches: Launches, world: World) -> None:
    for result in measured(launches[world], BY_ITS_CLOCK):
        check_own_clock(result)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_state_that_is_loaded_on_a_dense_way_is_sent(launches: Launches, world: World) -> None:
    for result in measured(launches[world], "auto_sends_a_state_that_is_loaded_on_a_dense_way"):
        assert result["waiting"] > 0
        assert result["left"] == 0


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_two_tapes_in_one_function_take_their_steps_in_the_programs_order(
    launches: Launches, world: World
) -> None:
    for result in measured(launches[world], TWO_TAPES):
        assert result == {"alike": True, "steps_left": 0}


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_who_is_not_in_the_process_set_is_left_alone(launches: Launches, world: World) -> None:
    results = measured(launches[world], "auto_leaves_alone_who_is_not_in_its_process_set")
    assert [result["is_member"] for result in results] == [True, True, False][: world[0]]
    for result in results:
        assert result["left"] == (0 if result["is_member"] else 4)
        assert result["alike"]


@pytest.mark.parametrize(("world", "case"), in_worlds(WORLDS, TRAININGS))
def test_replicas_learn_and_stay_identical_on_all_ways(
    launches: Launches, world: World, case: str
) -> None:
    results = measured(launches[world], case)
    for result in results:
        for label in ("changing", "dense"):
            assert result[label]["digest"] == results[0][label]["digest"]
            assert result[label]["learnt"] < 0.3
            assert result[label]["left"] == 0, "a step was no step, or one was two"
        assert result["dense"]["weights"] == pytest.approx(result["none"]["weights"], rel=1e-5)


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_what_cannot_step_aside_is_refused(launches: Launches, world: World) -> None:
    for result in measured(launches[world], "auto_refuses_what_it_cannot"):
        assert "which is the optimizer's momentum" in result["momentum"]["words"]
        assert "auto measures its ways in the same steps" in result["planned"]["words"]
        assert result["bare"]["raised"] == "UnsupportedInput"
        assert "hvd.DistributedGradientTape" in result["bare"]["words"]
        assert result["other"]["raised"] == "RankMismatch"
        assert '"trial_steps": 3' in result["other"]["words"]


def test_one_thread_of_tensorflows_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the other ranks, when they tell each other what they found."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    cases = [BY_ITS_CLOCK, TWO_TAPES, "auto_trains_by_keras"]
    outcome = launch_cases((2, "gloo"), cases)
    for result in measured(outcome, BY_ITS_CLOCK):
        check_own_clock(result)
    for case in cases[1:]:
        assert len(measured(outcome, case)) == 2
