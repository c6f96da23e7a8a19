"""Invariants 2, 3 and 22: rounding is bounded, finite, and kept in the residual."""

import cases
import numpy as np
import pytest
from distributions import ALL, draw

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.registry import CODECS, MEMORIES, SELECTORS
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.receiver import write_sum
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import Selection, TensorSpec

MADE = [case.create(CODECS) for case in cases.CODECS]
ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 127, "int4": 7}
"""Half a unit in the last place, relative, of numbers that are not subnormal in the format; or the
largest multiple of the formats that have one step."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", ERROR)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 3e4, 1e30])
def test_rounding_stays_within_its_bound_and_never_overflows(dtype, values, scale):
    for name in ALL:
        vector = (draw(name, 2_000, dtype) * scale).astype(dtype)
        vector = vector[np.isfinite(vector)]
        selection = Selection(np.arange(vector.size, dtype=np.uint32), vector, vector.size)
        decoded = CODECS.create("block16", values=values).decode(
            CODECS.create("block16", values=values).encode(selection)
        )
        got, meant = decoded.values.astype(np.float64), vector.astype(np.float64)
        largest = np.abs(meant).max(initial=0)
        if values in ("int8", "int4"):
            bound = np.full(vector.size, largest / (2 * ERROR[values]) * 1.001 + 2.0**-100)
        elif values == "float16":
            inside = np.clip(meant, -65_504, 65_504)
            bound = np.abs(meant - inside) + np.maximum(np.abs(inside) * ERROR[values], 2.0**-25)
        else:
            bound = np.maximum(np.abs(meant) * ERROR[values], 2.0**-126)
        assert np.isfinite(got).all()
        assert (np.abs(got - meant) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_two_levels_are_the_means_of_their_groups_in_any_order(dtype, scale):
    codec, rng = CODECS.create("golomb", values="int2"), np.random.default_rng(0)
    for name in ALL:
        vector = (draw(name, 2_000, dtype) * scale).astype(dtype)
        vector = vector[np.isfinite(vector) & (vector != 0)]
        places = np.arange(vector.size, dtype=np.uint32)
        got = codec.decode(codec.encode(Selection(places, vector, vector.size))).values
        order = rng.permutation(vector.size)
        again = codec.decode(codec.encode(Selection(places, vector[order], vector.size))).values
        assert again.tolist() == got[order].tolist(), name
        sizes, meant = np.abs(vector).astype(np.float64), vector.astype(np.float64)
        least = 2.0**-125 * np.sqrt(sizes.size)  # the grid, below which nothing is sent
        assert np.linalg.norm(got - meant) <= np.linalg.norm(meant) * (1 + 1e-6) + least, name
        is_upper = sizes > sizes.mean() if sizes.size else sizes > 0
        for group in (is_upper, ~is_upper):
            if group.any() and sizes[group].mean() > 2.0**-14 * sizes.max():  # above the grid
                assert np.abs(got[group]) == pytest.approx(sizes[group].mean(), rel=1e-3), name


CONSERVING = [case for case in cases.MEMORIES if case.create(MEMORIES).conserves]


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("codec", MADE, ids=repr)
@pytest.mark.parametrize("memory", CONSERVING, ids=str)
def test_what_codecs_round_stays_in_the_residual(memory, codec, rollback):
    check_rounding_stays({"id": "topk", "density": 0.02}, memory.create(MEMORIES), codec, rollback)


@pytest.mark.parametrize("case", cases.SELECTORS, ids=str)
def test_what_a_mean_of_magnitudes_rounds_stays_behind_every_selector(case):
    selector = case.create(SELECTORS, density=0.25)
    check_rounding_stays(selector, "error_feedback", CODECS.create("sign_mean"), True)


def check_rounding_stays(selector, memory, codec, rollback):
    spec = TensorSpec("t", (40, 50), "float32")
    configuration = Configuration.create(
        selector=selector, memory=memory, codec=codec, rollback=rollback
    )
    pipeline = Pipeline(configuration, reference)
    state, twin = TensorState(spec, configuration), configuration.memory.create(spec, rollback=True)
    for step in range(4):
        gradient = draw("normal", spec.numel, seed=step)
        gradient[step] = 1e6  # beyond float16
        twin.load(state.memory.arrays())
        twin.step = state.steps  # as a step tells its memory
        accumulated = twin.compensate(gradient.copy(), reference).vector.copy()
        outgoing = pipeline.send(state, gradient, dense=False)
        decoded = np.zeros(spec.numel, np.float32)
        parts = [(slice(0, spec.numel), outgoing.frame)]
        codec = configuration.at_step(state.steps, spec).codec
        write_sum((spec, codec, parts, decoded, 1.0), reference)
        state.commit()
        residual = state.memory.arrays()["residual"]
        is_sent = decoded != 0
        assert np.isfinite(residual).all()
        assert residual[~is_sent].tobytes() == accumulated[~is_sent].tobytes()
        assert residual[is_sent].tolist() == (accumulated - decoded)[is_sent].tolist()
        assert not codec.is_exact or twin.release or not residual[is_sent].any()
        assert is_sent.sum() <= outgoing.entries
