"""Memory beyond the gradients, on real ranks: one residual, a second with rollback, and little
more.

One large tensor, a density at which next to nothing is selected, and the kernel's own count of
resident memory and its peak.  A copy of the gradient, wherever it is made, is one gradient more.
"""

import sys

import pytest
from _common import check_every_case
from harness import launch

from hvd_sparse.kernels.engines import why_not_fast

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/clear_refs is Linux's"),
    pytest.mark.skipif(bool(why_not_fast()), reason="the reference kernels of numpy make copies"),
]


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_residual_is_kept_and_no_copy_of_the_gradient_is_made(framework, monkeypatch):
    # large arrays come from the kernel and go back to it at once, so that what is resident is what
    # is used
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    check_every_case(launch("frontends/memory.py", 2, "mpi", framework))
