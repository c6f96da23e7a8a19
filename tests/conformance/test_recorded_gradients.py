"""Promises hold on real gradients: of a CNN, an LSTM and a transformer under error feedback."""

from __future__ import annotations

import cases
import pytest
from conformance import selector_checks
from recorded import recorded

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

MODELS = ("cnn", "lstm", "transformer")
VECTORS = [vector for step in (1, 300) for vector in recorded(step=step)]
selectors = pytest.mark.parametrize("case", cases.SELECTORS, ids=str)


@selectors
def test_selectors_keep_their_promises_on_real_gradients(case):
    for vector in VECTORS:
        selector_checks.check_found(case.create(SELECTORS, density=vector.density), vector.values)


def walk(configuration, model):
    vectors = list(recorded(model=model))
    tensor = vectors[0].tensor
    pipeline = Pipeline(configuration, reference)
    state = TensorState(TensorSpec(tensor, vectors[0].shape, "float32"), configuration)
    for vector in vectors:
        if vector.tensor == tensor:
            before = state.memory.arrays()["residual"] + vector.values
            sent = pipeline.send(state, vector.values, 0, 1, dense=False).found.selection
            state.commit()
            yield sent, before, state.memory.arrays()["residual"]


@selectors
@pytest.mark.parametrize("model", MODELS)
def test_nothing_of_a_real_gradient_is_lost(case, model):
    selector = case.create(SELECTORS, density=0.01)
    for sent, accumulated, kept in walk(Configuration.create(selector=selector), model):
        expected = accumulated.copy()
        if selector.changes_values:
            expected[sent.indices] -= sent.values
        else:
            assert sent.values.tobytes() == accumulated[sent.indices].tobytes()
            expected[sent.indices] = 0
        assert kept.tobytes() == expected.tobytes()
