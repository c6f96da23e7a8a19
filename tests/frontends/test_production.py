"""Loss scaling; and ten steps are five, a checkpoint, a new process and five more."""

import pytest
from _common import launched, measured, measured_of

BAD_STEPS = (4, 5, 9)
METHODS = ("ldte_bs", "dgc", "redsync")
WORLDS = {"save": (2, "mpi"), "resume": (2, "gloo")}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    return lambda work: launched("frontends/production.py", *WORLDS[work], "torch", work, folder)


@pytest.fixture(params=["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def scaled(request, outcome_of):
    if request.param == "torch":
        return measured_of(outcome_of("save"), "scaling")
    return measured_of(launched("frontends/user_programs.py", 2, "mpi", "tensorflow"), "scaling")


def test_inf_on_one_rank_is_seen_in_that_tensor_on_all_and_leaves_no_trace(scaled):
    for results in scaled.values():
        for result in results:
            bad = [step in BAD_STEPS for step in range(12)]
            assert result["seen"] == [[result["tensor"]] if is_bad else [] for is_bad in bad]
            assert result["kept"] == [[is_bad] * 2 for is_bad in bad]


def test_scalers_act_alike_on_all_ranks_and_replicas_end_alike(scaled):
    scales = [2.0**e for e in (10, 10, 11, 11, 10, 9, 9, 9, 10, 9, 9, 9)]
    for results in scaled.values():
        assert all(result["scales"] == scales for result in results)
        assert len({result["end"] for result in results}) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_new_process_goes_on_bit_for_bit(outcome_of, method):
    saved, resumed = (measured(outcome_of(work), method) for work in ("save", "resume"))
    for whole, halves in zip(saved, resumed):
        assert halves == [whole["end"]] * 2
        if method == "ldte_bs":  # by the densities' names
            assert sorted(whole["entries"].values())[-2:] == [9, 19]
