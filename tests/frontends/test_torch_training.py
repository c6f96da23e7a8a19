"""Training through Horovod's PyTorch optimizer on real ranks: law 3, groups and plans."""

import pytest
from _common import check_every_case, launched, measured
from _torch_laws import WATCHED_NAME, WATCHED_STEPS

WORLDS = [(1, "mpi"), (2, "gloo"), (3, "mpi")]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def outcome(request):
    ranks, controller = request.param
    return launched("frontends/torch_training.py", ranks, controller, "torch", str(ranks))


def test_density_one_trains_like_dense_and_every_law_holds_on_every_rank(outcome):
    check_every_case(outcome)


def test_a_summary_is_printed_on_one_rank_alone(outcome):
    words = f"hvd_sparse {WATCHED_NAME}, since it was made: {WATCHED_STEPS} steps"
    assert outcome.output.count(words) == 1


@pytest.fixture(scope="module")
def produced(tmp_path_factory):
    """Launches that save, and that resume in new processes."""
    folder, worker = str(tmp_path_factory.mktemp("checkpoints")), "frontends/torch_production.py"
    return [
        launched(worker, 2, controller, work, folder)
        for work, controller in {"save": "mpi", "resume": "gloo"}.items()
    ]


def test_inf_on_one_rank_is_seen_in_that_tensor_on_all_and_leaves_no_trace(produced):
    check_every_case(produced[0])


def test_a_new_process_goes_on_bit_for_bit(produced):
    for whole, halves in zip(*(measured(outcome, "halves") for outcome in produced)):
        assert halves == [whole] * 4
