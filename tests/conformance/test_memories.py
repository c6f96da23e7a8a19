"""Every memory loses nothing, and can take a step back."""

import cases
import numpy as np
import pytest
from conformance import memory_checks
from distributions import ALL

from hvd_sparse.registry import MEMORIES
from hvd_sparse.state.state_check import lengths_of
from hvd_sparse.types import TensorSpec

conserving = [case for case in cases.MEMORIES if case.create(MEMORIES).conserves]
memories = pytest.mark.parametrize("case", conserving, ids=str)
all_memories = pytest.mark.parametrize("case", cases.MEMORIES, ids=str)
buffers = pytest.mark.parametrize("rollback", [True, False], ids=["two-buffers", "one-buffer"])


@memories
@buffers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALL)
def test_sent_and_kept_are_what_was_accumulated_bit_for_bit(case, rollback, dtype, name):
    memory_checks.check_split_is_exact(case.create(MEMORIES), name, dtype, rollback=rollback)


@all_memories
@buffers
def test_how_long_a_checkpoints_arrays_must_be_is_known_without_making_them(case, rollback):
    spec = TensorSpec("x", (30, 10), "float32")
    memory = case.create(MEMORIES)
    kept = {
        name: len(array) for name, array in memory.create(spec, rollback=rollback).arrays().items()
    }
    known = lengths_of(memory, spec, 300)
    assert {name: numbers[-1] for name, numbers in known.items()} == kept
    assert {numbers[0] for numbers in known.values()} <= {300}


@all_memories
def test_failed_dense_and_resting_steps_lose_nothing(case):
    memory_checks.check_memory(case.create(MEMORIES))


@pytest.mark.parametrize(
    "case", [case for case in cases.MEMORIES if "residual" not in case.options], ids=str
)
@pytest.mark.parametrize(
    ("dtype", "kept_as"),
    [("float16", "f4"), ("bfloat16", "f4"), ("float32", "f4"), ("float64", "f8")],
)
def test_the_residual_is_float32_and_float64_for_float64(case, dtype, kept_as):
    arrays = case.create(MEMORIES).create(TensorSpec("t", (3, 4), dtype), rollback=True).arrays()
    assert {a.dtype for a in arrays.values()} <= {np.dtype(kept_as)}
    assert all(a.size == 12 for a in arrays.values() if a.size)
