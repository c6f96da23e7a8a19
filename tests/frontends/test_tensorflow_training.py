"""TensorFlow on real ranks: law 3, plans, ``auto``, and Keras optimizers that are handed over."""

import pytest
from _common import check_every_case, launched
from _tensorflow_settings import LAUNCHES
from devices.gpu_check.checks import judge_placement
from harness import launch

KERAS_3 = [(2, "gloo", "keras3"), pytest.param((3, "mpi", "keras3"), marks=pytest.mark.full)]


@pytest.mark.parametrize("world", [*LAUNCHES, *KERAS_3], ids=str)
def test_density_one_trains_like_dense_and_every_law_holds_on_every_rank(world):
    ranks, controller, *version = world
    worker = "keras_training" if version else "tensorflow_training"
    more = (*version, str(ranks)) if version else ("tensorflow", str(ranks), controller)
    check_every_case(launched(f"frontends/{worker}.py", ranks, controller, *more))


@pytest.mark.full
def test_one_thread_of_tensorflows_is_enough(monkeypatch):
    """It waits for the other ranks, when they tell each other what they found."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    cases = ["auto_decides_alike_by_its_own_clock", "auto_of_two_tapes_in_one_function"]
    arguments = ("tensorflow", "2", "gloo", *cases, "auto_trains_by_keras")
    check_every_case(launch("frontends/tensorflow_training.py", 2, "gloo", *arguments))


@pytest.mark.full
@pytest.mark.parametrize("which", ["2", "3", "graphs"], ids=["Keras 2", "Keras 3", "graphs"])
def test_bad_input_is_refused_by_name_and_with_the_remedy_and_other_input_is_not(which):
    check_every_case(launched("frontends/tensorflow_refusals.py", 1, "mpi", which))


@pytest.mark.full
def test_gpu_check_looks_at_the_placement_on_two_ranks_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_TEST_DEVICE", "cpu")
    reports = launch("frontends/tensorflow_on_gpu.py", 2, "gloo").check()
    found = judge_placement("placement", reports)
    assert found.verdict == "passed" and "hvd_sparse_send" in found.words, found
    assert judge_placement("placement", [{}, {}]).verdict == "NOT RUN"
    reports[0]["found"]["ran"]["hvd_sparse_send"] = ["GPU:0"]
    assert judge_placement("placement", reports).verdict == "FAILED"
