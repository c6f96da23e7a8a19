"""What ``scripts/gpu-check`` looks at on two ranks does run where there is no GPU."""

import pytest
from devices.gpu_check.checks import judge_placement
from harness import launch
from installed import horovod_parts


@pytest.mark.skipif("torch" not in horovod_parts(), reason="Horovod was built without PyTorch")
def test_the_stall_is_looked_for_on_two_ranks():
    outcome = launch("frontends/torch_stall.py", 2, "gloo")
    for result in outcome.check():
        assert set(result["gathers"]) == {"idle", "default", "own"}
        assert all(seconds > 0 for seconds in result["gathers"].values())


@pytest.mark.skipif(
    "tensorflow" not in horovod_parts(), reason="Horovod was built without TensorFlow"
)
def test_tensorflows_placement_is_looked_at_on_two_ranks(monkeypatch):
    monkeypatch.setenv("HVD_SPARSE_TEST_DEVICE", "cpu")
    reports = launch("frontends/tensorflow_on_gpu.py", 2, "gloo").check()
    found = judge_placement("placement", reports)
    assert found.verdict == "passed" and "hvd_sparse_send" in found.words, found
    assert judge_placement("placement", [{}, {}]).verdict == "NOT RUN"
    reports[0]["found"]["ran"]["hvd_sparse_send"] = ["GPU:0"]
    assert judge_placement("placement", reports).verdict == "FAILED"
