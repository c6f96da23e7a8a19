"""Every memory loses nothing, and can take a step back."""

import cases
import numpy as np
import pytest
from conformance import memory_checks
from distributions import ALL, draw

from hvd_sparse.kernels import reference
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
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_rolling_back_restores_the_old_bits_or_keeps_the_mass(case, dense):
    memory = case.create(MEMORIES)
    memory_checks.check_roll_back_restores_bits(memory, dense=dense)
    if memory.conserves:
        memory_checks.check_mass_is_kept_without_roll_back(memory, dense=dense)


@memories
@buffers
def test_a_dense_step_sends_everything_and_a_step_that_never_began_changes_nothing(case, rollback):
    memory = case.create(MEMORIES)
    memory_checks.check_take_all_flushes(memory, rollback=rollback)
    memory_checks.check_roll_back_before_compensate_changes_nothing(memory, rollback=rollback)


@pytest.mark.parametrize(
    "case", [case for case in cases.MEMORIES if case.create(MEMORIES).finishes], ids=str
)
def test_finishing_writes_to_a_vector_of_its_own_and_rests_at_a_learning_rate_of_0(case):
    memory = case.create(MEMORIES)
    memory_checks.check_finish_leaves_its_input(memory)
    memory_checks.check_parameters_are_read_if_declared(memory)
    if memory.conserves:
        memory_checks.check_rests(memory)


@memories
@buffers
def test_what_a_memory_says_it_added_tells_the_accumulated_from_the_residual(case, rollback):
    """For selectors that look at both: what they are given instead of the gradient."""
    state = case.create(MEMORIES).create(TensorSpec("t", (30, 10), "float32"), rollback=rollback)
    for seed in range(3):
        residual = state.arrays()["residual"].copy()
        accumulated = state.compensate(draw("normal", 300, seed=seed), reference)
        assert (residual + accumulated.added).tobytes() == accumulated.vector.tobytes()
        state.update(memory_checks.every_nth(accumulated.vector, 4), True)
        state.commit()


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
