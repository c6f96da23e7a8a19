"""The bytes that are told before anything is allocated are those that are taken."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from worlds import configure, tensors

from hvd_sparse.frontend.states import footprint
from hvd_sparse.kernels import reference
from hvd_sparse.memories._directions import DirectionState
from hvd_sparse.memories.contract import DoubleBuffer
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec

SPECS = [*tensors((30, 20), (64, 3)), TensorSpec("short", (12,), "float32")]


@pytest.mark.parametrize(
    "case", [case for case in cases.MEMORIES if not case.create(MEMORIES).counts_votes], ids=str
)
@pytest.mark.parametrize("rollback", [True, False])
def test_a_states_bytes_are_those_of_its_vectors(case, rollback):
    configuration = configure(memory=case.create(MEMORIES), rollback=rollback, min_numel=100)
    states = [configuration.memory.create(spec, rollback=rollback) for spec in SPECS]
    for spec, state in zip(SPECS, states):
        if isinstance(state, DirectionState):  # a velocity is made where it is needed
            is_sparse = configuration.is_sparse(spec.shape, spec.numel)
            state.density = configuration.density(0, spec) if is_sparse else 1.0
            state.compensate(np.zeros(spec.numel, np.float32), reference)
    held = [
        sum(
            thing.nbytes
            for thing in vars(state).values()
            if isinstance(thing, (DoubleBuffer, np.ndarray))
        )
        for state in states
    ]
    expected = sum(held if configuration.memory.finishes else held[:2])
    assert footprint(configuration, SPECS, 4)["state_bytes"] == expected


def test_error_feedback_takes_two_vectors_with_rollback_and_one_without():
    (spec,) = tensors((1000, 1000))
    assert footprint(configure(), [spec], 2)["state_bytes"] == 8_000_000
    assert footprint(configure(rollback=False), [spec], 2)["state_bytes"] == 4_000_000


def test_gathered_bytes_grow_with_ranks_and_density():
    (spec,) = tensors((1000, 1000))
    one, other = (
        footprint(configure(density=0.01), [spec], size)["gathered_bytes"] for size in (2, 8)
    )
    assert other == 4 * one > 2 * 10_000 * 8
