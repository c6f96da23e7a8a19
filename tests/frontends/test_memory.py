"""Memory beyond the gradients, on real ranks: one residual, a second with rollback, and little
more.

One large tensor, a density at which next to nothing is selected, and the kernel's own count of
resident memory and its peak.  A copy of the gradient, wherever it is made, is one gradient more.
"""

import sys

import pytest
from _common import measured
from harness import launch

from hvd_sparse.kernels.engines import why_not_fast

SLACK = 0.2
"""Gradients: 3.4 MB of 16.8; half a copy would be found."""
RESIDUALS = {
    "topk_without_rollback": 1.0,
    "topk_with_rollback": 2.0,
    "ldte_bs_without_rollback": 1.0,
    "topk_with_half_a_residual": 0.5,
}
REDUCED = {"torch": 0.0, "tensorflow": 1.0}
"""PyTorch's reduced gradient is in the memory of the gradient; TensorFlow's tensors are never
written to, so it is another."""
WORKING = {"topk_with_half_a_residual": 5.0}
"""A residual of 16 bits is widened, added to the gradient and rounded again in arrays of float32
that last for one tensor."""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/clear_refs is Linux's"),
    pytest.mark.skipif(bool(why_not_fast()), reason="the reference kernels of numpy make copies"),
]


@pytest.fixture(scope="module", params=REDUCED)
def outcome(request, monkeypatch_module):
    # large arrays come from the kernel and go back to it at once, so that what is resident is what
    # is used
    monkeypatch_module.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    return request.param, launch("frontends/memory.py", 2, "mpi", request.param)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("case", RESIDUALS)
def test_between_steps_there_is_a_residual_and_a_second_with_rollback(outcome, case):
    for result in measured(outcome[1], case):
        assert result["kept"] == pytest.approx(RESIDUALS[case], abs=SLACK)


@pytest.mark.parametrize("case", RESIDUALS)
def test_a_step_makes_no_copy_of_the_gradient(outcome, case):
    framework, launched = outcome
    for result in measured(launched, case):
        assert result["needed"] <= max(REDUCED[framework], WORKING.get(case, 0.0)) + SLACK


def test_a_copy_would_be_seen(outcome):
    framework, launched = outcome
    if framework == "torch":
        for result in measured(launched, "not_contiguous"):
            assert result["needed"] == pytest.approx(2.0, abs=SLACK)
