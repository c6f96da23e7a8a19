"""The fast engine is chosen, compiled beforehand, and right on any processor."""

from __future__ import annotations

import numpy as np
import pytest
from kept import compiled_before
from programs import run_python

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.types import Selection

pytest.importorskip("numba", reason="these are tests of the engine numba")

from hvd_sparse.kernels.numba import CompiledKernels, bits, fused, lists, packing, rows, scans

COMPILED = {
    name: value
    for module in (bits, fused, lists, packing, rows, scans)
    for name, value in vars(module).items()
    if hasattr(value, "py_func")
    and value.py_func.__module__ == module.__name__
    and not name.startswith("_")
}


def test_the_fast_engine_is_used_unless_told_otherwise():
    assert isinstance(resolve_engine(None), CompiledKernels)
    assert resolve_engine("numpy") is reference
    assert resolve_engine({"id": "numba", "threads": 2}).threads == 2


@pytest.mark.parametrize("name", COMPILED)
def test_nothing_is_compiled_in_a_training_step_and_the_interpreter_is_free(name):
    function = COMPILED[name]
    assert not function._can_compile, "a call with other types would compile"
    assert function.targetoptions["nogil"]
    assert function.signatures


@pytest.mark.parametrize(
    ("name", "features"),
    [("without-avx", ""), ("avx2", "+avx,+avx2,+fma")],
    ids=["without-avx", "avx2"],
)
@pytest.mark.full
def test_other_processors_get_the_same_bits(name, features, tmp_path):
    """Compiled for a processor without AVX-512, every contract holds."""
    script = (
        "from conformance.fused_checks import check_kernels\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "from hvd_sparse.kernels.numba.fused import add_and_take\n"
        "if add_and_take.stats.cache_misses:\n"
        "    code = add_and_take.inspect_asm(add_and_take.signatures[0])\n"
        "    assert 'add_and_take' in code and '%zmm' not in code\n"
        "check_kernels(resolve_engine('numba'))\n"
    )
    machine = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    with compiled_before(name, tmp_path / "cache"):
        done = run_python("-c", script, **machine)
        assert done.returncode == 0, done.stderr


def test_threads_that_take_subnormal_numbers_for_zero_take_no_zeros():
    pytest.importorskip("torch", reason="it flushes subnormal numbers")
    script = (
        "import numpy as np, torch\n"
        "from hvd_sparse.kernels import reference\n"
        "from hvd_sparse.kernels.engines import resolve_engine\n"
        "x = np.zeros(1000, np.float32); x[::7] = 1e-40; x[::5] = 1.0\n"
        "assert torch.set_flush_denormal(True)\n"
        "for kernels in (reference, resolve_engine('numba')):\n"
        "    assert kernels.moments(x).nonzeros == 200\n"
        "    assert kernels.take_at_least(x, 0.0).indices.tolist() == list(range(0, 1000, 5))\n"
        "    assert kernels.take_at_least(x, 0.5).indices.tolist() == list(range(0, 1000, 5))\n"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "numel", [lists.LARGE_BYTES // 4 + more for more in (0, 1, lists.BLOCK + 17)]
)
def test_sums_written_past_the_caches_are_right_from_any_place_in_a_line_and_touch_nothing_else(
    dtype, numel
):
    rng = np.random.default_rng(numel)
    parts = []
    for count in (0, 40, numel // 3):
        indices = np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)
        parts.append(Selection(indices, rng.standard_normal(count).astype(dtype), numel))
    expected = np.zeros(numel, dtype)
    for part in parts:
        expected[part.indices] += part.values
    for start in range(18):
        memory = np.full(numel + 40, 7, dtype)
        CompiledKernels().assemble(memory[start : start + numel], parts)
        assert memory[start : start + numel].tobytes() == expected.tobytes()
        assert (memory[:start] == 7).all() and (memory[start + numel :] == 7).all()
