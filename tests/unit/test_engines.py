"""Which engine runs, and what it says when it is the slow one."""

from __future__ import annotations

import pytest
from installed import has_triton, is_installed, with_triton
from programs import run_python

WITHOUT_NUMBA = (
    "import sys, logging; logging.basicConfig(format='%(message)s'); sys.modules['numba'] = None\n"
)
RESOLVE = "from hvd_sparse.kernels.engines import resolve_engine\nkernels = resolve_engine('{}')\n"


def test_without_numba_it_is_numpy_which_says_so_once():
    script = (
        "from hvd_sparse.kernels import reference\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "assert resolve_engine(None) is resolve_engine(None) is reference"
    )
    done = run_python("-c", WITHOUT_NUMBA + script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'hvd-sparse[fast]'") == 1


def test_numpy_that_was_asked_for_says_nothing():
    done = run_python("-c", WITHOUT_NUMBA + RESOLVE.format("numpy"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("engine", "extra"), [("numba", "fast"), ("torch", "torch")])
def test_an_engine_that_is_asked_for_and_not_there_is_an_error_with_the_remedy(engine, extra):
    done = run_python("-c", f"import sys; sys.modules['{engine}'] = None\n{RESOLVE.format(engine)}")
    assert done.returncode == 1
    assert "InvalidOption" in done.stderr
    assert f"pip install 'hvd-sparse[{extra}]'" in done.stderr


@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
def test_the_engine_torch_needs_no_numba():
    script = (
        "import numpy as np\n"
        "assert kernels.take_largest(np.arange(9.0), 2).indices.tolist() == [7, 8]"
    )
    done = run_python("-c", WITHOUT_NUMBA + RESOLVE.format("torch") + script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("resolve_engine('triton')", "no gradient of this compressor stays there"),
        ("TritonEngine().kernels", "needs a GPU"),
    ],
)
def test_triton_is_refused_where_no_vector_is_on_a_gpu(how, words):
    done = run_python(
        "-c",
        f"from hvd_sparse.kernels.engines import TritonEngine, resolve_engine\n{how}",
        CUDA_VISIBLE_DEVICES="",
        **with_triton(),
    )
    assert done.returncode == 1
    assert "InvalidOption" in done.stderr
    assert words in done.stderr
    assert "leave engine out" in done.stderr
