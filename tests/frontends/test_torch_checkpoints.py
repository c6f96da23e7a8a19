"""Ten steps are five, a checkpoint, a new process and five more; and another world takes all of
what was kept."""

from __future__ import annotations

import numpy as np
import pytest
from _outcomes import measured
from harness import Outcome, launch

METHODS = ("ldte_bs", "dgc", "redsync")
Launches = dict[str, Outcome]


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    worlds = {"save": (2, "mpi"), "go_on": (2, "gloo"), "redistribute": (3, "mpi")}
    return {
        work: launch("frontends/torch_checkpoints.py", ranks, controller, work, folder)
        for work, (ranks, controller) in worlds.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_new_process_goes_on_bit_for_bit(launches: Launches, method: str) -> None:
    for whole, halves in zip(
        measured(launches["save"], method), measured(launches["go_on"], method)
    ):
        assert halves["ends"] == [whole["end"]] * 2


@pytest.mark.parametrize("method", METHODS)
def test_another_world_owes_the_optimizer_what_the_old_one_did(
    launches: Launches, method: str
) -> None:
    """Of an average: the mean over the ranks; each rank's own is rounded to float32 once more."""
    before, after = (
        measured(launches["save"], method)[0]["owed"],
        measured(launches["redistribute"], method)[0]["owed"],
    )
    assert max(before[1]) > 1
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-7 * max(before[1]))


@pytest.mark.parametrize("method", METHODS)
def test_training_goes_on_in_another_world(launches: Launches, method: str) -> None:
    assert len({result["weights"] for result in measured(launches["redistribute"], method)}) == 1


@pytest.mark.parametrize("method", METHODS)
def test_one_ranks_state_of_another_world_is_refused_with_the_way_out(
    launches: Launches, method: str
) -> None:
    for result in measured(launches["redistribute"], method):
        assert result["refused"].startswith("RankMismatch: ")
        assert (
            "it is of a world of 2 ranks, this one has 3: save(path) and load(path)"
            in result["refused"]
        )
