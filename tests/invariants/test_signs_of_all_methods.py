"""Signs with one mean magnitude behind every selector and every memory that keeps a residual: what
the mean rounds stays in the residual, and replicas are alike."""

from __future__ import annotations

import cases
import numpy as np
import pytest
import worlds
from worlds import normals, tensors

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.registry import MEMORIES, SELECTORS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.session import Session
from hvd_sparse.step.tensor_state import TensorState

SHAPE = (40, 25)
KEEPING = [
    case
    for case in cases.MEMORIES
    if (memory := case.create(MEMORIES)).conserves and memory.keeps_rounding
]


def configured(selector, memory, **options):
    return Configuration.create(
        selector=selector.create(SELECTORS, density=0.25),
        memory=memory.create(MEMORIES),
        codec="sign_mean",
        min_numel=1,
        allow_dense=False,
        **options,
    )


def fits(selector, memory, **options):
    try:
        configured(selector, memory, **options)
    except InvalidOption:
        return False
    return True


PAIRS = [(s, m) for s in cases.SELECTORS for m in KEEPING if fits(s, m)]
(TOPK,) = (case for case in cases.SELECTORS if str(case) == "topk")
REDUCED = [
    (exchange, memory)
    for exchange in ("allgather", "gtopk", "oktopk")
    for memory in KEEPING
    if fits(TOPK, memory, exchange=exchange)
    # a penalty wants parameters, which sessions of numpy have not
    and not memory.options.get("weight_decay")
]


def test_every_selector_and_every_such_memory_is_among_the_pairs():
    """All but the votes, which no residual corrects."""
    assert {str(s) for s in cases.SELECTORS} - {str(s) for s, _ in PAIRS} == set()
    assert {memory.id for _, memory in PAIRS} >= {
        "error_feedback",
        "momentum_correction",
        "momentum_feedback",
        "adam_correction",
    }


@pytest.mark.parametrize(("selector", "memory"), PAIRS, ids=str)
def test_what_the_mean_rounds_is_kept(selector, memory):
    configuration = configured(selector, memory)
    (spec,), pipeline = tensors(SHAPE), Pipeline(configuration, reference)
    state, twin = TensorState(spec, configuration), TensorState(spec, configuration)
    for step in range(4):
        gradient = normals([spec], step)[spec.key].ravel()
        for each in (state, twin):
            each.memory.step, each.memory.density = step, 0.25
        accumulated = twin.memory.compensate(gradient, reference, 1).vector.copy()
        twin.roll_back()
        sent = pipeline.send(state, gradient, 0, 1, dense=False)
        parts = configuration.at_step(step, spec)
        arrived = parts.codec.decode(sent.frame, reference)
        assert np.unique(np.abs(arrived.values)).size <= 1
        state.commit()
        kept = state.memory.arrays()["residual"].astype(np.float64)
        whole = kept.copy()
        whole[arrived.indices] += arrived.values
        tolerance = 1e-2 if str(memory).find("16") >= 0 else 1e-5
        assert whole == pytest.approx(accumulated, abs=tolerance * np.abs(accumulated).max())
        twin = TensorState(spec, configuration)
        twin.memory.load({name: array.copy() for name, array in state.memory.arrays().items()})
        if hasattr(twin.memory, "recall"):
            twin.memory.recall(state.memory.numbers())
        twin.restore(state.steps, state.threshold, state.memo)


@pytest.mark.parametrize(("exchange", "memory"), REDUCED, ids=str)
def test_replicas_are_alike(exchange, memory):
    configuration = configured(TOPK, memory, exchange=exchange)
    specs = tensors(SHAPE, (30, 30))

    def script(collective):
        session = Session(configuration, specs, collective)
        return [
            reduced.tobytes()
            for step in range(4)
            for reduced in session.reduce(normals(specs, collective.rank, step)).values()
        ]

    first, *others = worlds.run(3, script)
    assert all(other == first for other in others)
