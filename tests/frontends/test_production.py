"""Loss scaling; and ten steps are five, a checkpoint, a new process and five more."""

import pytest
from _common import check_every_case, launched, measured

WORLDS = {"save": (2, "mpi"), "resume": (2, "gloo")}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    return lambda work: launched("frontends/production.py", *WORLDS[work], "torch", work, folder)


def test_inf_on_one_rank_is_seen_in_that_tensor_on_all_and_leaves_no_trace(outcome_of):
    """As in TensorFlow, in the launch of test_user_programs.py."""
    check_every_case(outcome_of("save"))


def test_a_new_process_goes_on_bit_for_bit(outcome_of):
    saved, resumed = (measured(outcome_of(work), "halves") for work in ("save", "resume"))
    for whole, halves in zip(saved, resumed):
        assert halves == [whole["end"]] * 2
        assert sorted(whole["entries"].values())[-2:] == [9, 19]  # by the densities' names
