"""Invariant 35: ten steps are five, a checkpoint, and five more, bit for bit, for all parts."""

import json

import cases
import pytest
from distributions import draw
from worlds import bits_of

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.registry import MEMORIES, SELECTORS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

SPEC = TensorSpec("t", (20, 25), "float32")


def advance(pipeline, state, steps):
    frames = []
    for step in steps:
        frames.append(
            pipeline.send(state, draw("laplace", 500, seed=step), dense=False).frame.tobytes()
        )
        state.commit()
    return frames


def check_continues(configuration):
    pipeline = Pipeline(configuration, reference)
    whole, first, second = (TensorState(SPEC, configuration) for _ in range(3))
    expected = advance(pipeline, whole, range(10))
    frames = advance(pipeline, first, range(5))
    names = ("steps", "threshold", "memo", "exchange_memo", "selected_in")
    second.restore(json.loads(json.dumps({name: getattr(first, name) for name in names})))
    second.memory.load({name: array.copy() for name, array in first.memory.arrays().items()})
    assert frames + advance(pipeline, second, range(5, 10)) == expected
    assert bits_of(second.memory.arrays()) == bits_of(whole.memory.arrays())


@pytest.mark.parametrize("case", cases.SELECTORS, ids=str)
def test_a_selector_goes_on_from_a_checkpoint(case):
    check_continues(Configuration.create(selector=case.create(SELECTORS, density=0.05)))


@pytest.mark.parametrize("case", cases.MEMORIES, ids=str)
@pytest.mark.parametrize("rollback", [True, False])
def test_a_memory_goes_on_from_a_checkpoint(case, rollback):
    memory = case.create(MEMORIES)
    selector = "sign_vote" if memory.counts_votes else {"id": "topk", "density": 0.05}
    check_continues(Configuration.create(selector=selector, memory=memory, rollback=rollback))
