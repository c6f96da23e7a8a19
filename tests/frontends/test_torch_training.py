"""Training through Horovod's PyTorch optimizer on real ranks: law 3, groups and plans."""

import _torch_programs
import pytest
from _common import ULP, check_every_case, launched, measured
from _torch_laws import WATCHED_NAME, WATCHED_STEPS

WORLDS = [(1, "mpi"), (2, "gloo"), (3, "mpi")]
TOLERANCE_ULPS = 4
PROGRAMS = [name for name in _torch_programs.cases if name != "half_density"]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def outcome(request):
    ranks, controller = request.param
    return launched("frontends/torch_training.py", ranks, controller, "torch", str(ranks))


def test_density_one_trains_like_dense_and_every_law_holds_on_every_rank(outcome):
    check_every_case(outcome)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_train_like_dense(outcome, name):
    results = measured(outcome, name)
    for result in results:
        assert result["difference"] <= TOLERANCE_ULPS * ULP["float32"]
        assert not any(result["dense_steps"])
    assert len({result["digest"] for result in results}) == 1


COMPRESSED = {
    "sparse_embeddings_untouched": ("head.weight", "head.bias"),
    "embeddings_as_dense": ("first.weight", "second.weight", "head.weight", "head.bias"),
    "groups_of_compressed_and_dense_tensors": ("0.weight", "2.weight"),
}


def test_sparse_and_small_gradients_are_left_alone(outcome):
    for name, tensors in COMPRESSED.items():
        for result in measured(outcome, name):
            assert result["tensors"] == [dict.fromkeys(tensors, _torch_programs.STEPS)]
            assert (result["dense_bytes"][0] > 0) == ("dense_tensors" in name), name


def test_a_loss_that_overflows_undoes_a_step_of_its_own_optimizer_alone(outcome):
    for result in measured(outcome, "one_loss_overflows"):
        steps = {key: _torch_programs.STEPS - (key[0] != "0") for key in result["tensors"][0]}
        assert result["tensors"] == [steps]


def test_half_density_goes_dense_where_that_is_cheaper(outcome):
    results = measured(outcome, "half_density")
    for result in results:
        if len(results) == 1:
            assert result["dense_steps"] == [0]
        else:
            assert result["dense_steps"] == [6 * _torch_programs.STEPS]
            assert result["difference"] <= TOLERANCE_ULPS * ULP["float32"]


def test_the_ranks_of_a_process_set_plan_for_themselves(outcome):
    results = measured(outcome, "planned_by_members")
    plans = [result["plan"] for result in results if result["is_member"]]
    assert plans
    assert all(plan is not None and plan == plans[0] for plan in plans)
    for result in results:  # steps in the warm-up are dense, and the plan is for those behind it
        if result["is_member"]:
            assert set(result["nbytes"]) == {"wide", "tall", "one", "deep", "small", "bias"}
            assert 4 * 64 <= result["nbytes"]["wide"] <= 12 * 64


def test_a_summary_is_printed_on_one_rank_alone(outcome):
    words = f"hvd_sparse {WATCHED_NAME}, since it was made: {WATCHED_STEPS} steps"
    assert outcome.output.count(words) == 1
