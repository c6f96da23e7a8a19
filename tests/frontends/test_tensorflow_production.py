"""Loss scaling and checkpoints under Horovod's tape and Keras."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

BAD_STEPS = (4, 5, 9)
SCALING = {
    "scaling_of_a_sparse_tensor": "tall",
    "scaling_of_a_dense_tensor": "bias",
    "scaling_of_a_tensor_in_a_group": "tall",
}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    controllers = {"save": "mpi", "go_on": "gloo"}
    return {
        work: launch("frontends/tensorflow_production.py", 2, controller, work, folder)
        for work, controller in controllers.items()
    }


@pytest.mark.parametrize("case", SCALING)
def test_inf_on_one_rank_is_seen_in_that_tensor_on_all(
    launches: dict[str, Outcome], case: str
) -> None:
    for result in measured(launches["save"], case):
        assert result["seen"] == [
            [SCALING[case]] if step in BAD_STEPS else [] for step in range(12)
        ]


@pytest.mark.parametrize("case", SCALING)
def test_a_step_that_the_scaler_skips_leaves_residuals_and_weights(
    launches: dict[str, Outcome], case: str
) -> None:
    for result in measured(launches["save"], case):
        assert result["kept"] == [[step in BAD_STEPS] * 2 for step in range(12)]


@pytest.mark.parametrize("case", SCALING)
def test_scalers_act_alike_on_all_ranks_and_replicas_end_alike(
    launches: dict[str, Outcome], case: str
) -> None:
    results = measured(launches["save"], case)
    assert {tuple(r["scales"]) for r in results} == {
        tuple(2.0**e for e in (10, 10, 11, 11, 10, 9, 9, 9, 10, 9, 9, 9))
    }
    assert len({result["end"] for result in results}) == 1


def test_scale_changes_leave_the_pending_mass_right(launches: dict[str, Outcome]) -> None:
    for result in measured(launches["save"], "pending_mass"):
        assert result["missing"] == 0 and result["kept"] > 0


def test_a_new_process_goes_on_bit_for_bit(launches: dict[str, Outcome]) -> None:
    """From each rank's tf.train.Checkpoint, and from the file of all ranks."""
    for whole, halves in zip(
        measured(launches["save"], "checkpoint"), measured(launches["go_on"], "checkpoint")
    ):
        assert halves == [whole] * 2
        assert sorted(whole["entries"].values())[-2:] == [9, 19]  # by the densities' names


def test_the_keras_callback_saves_what_is_kept_at_an_epochs_end(
    launches: dict[str, Outcome],
) -> None:
    for result in measured(launches["save"], "keras_callback"):
        assert result["loaded"] == result["kept"] != result["changed"]
