"""Invariants 2, 3 and 22: rounding is bounded, finite, and kept in the residual; residuals of 16
bits are rounded to a neighbour with the right odds."""

import cases
import numpy as np
import pytest
import worlds
from distributions import ALL, SMOOTH, draw

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, NonFiniteGradient
from hvd_sparse.kernels import reference
from hvd_sparse.memories import error_feedback
from hvd_sparse.memories.error_feedback import STORED, narrow, widen
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


kinds = pytest.mark.parametrize("kind", STORED)
MANTISSA_BITS = {"bfloat16": 7, "float16": 10}
TINIEST = {"bfloat16": 2.0**-133, "float16": 2.0**-24}


def rounded(x, kind, seed=0):
    out = np.empty(x.size, STORED[kind])
    narrow(x, out, seed)
    return widen(out)


def spacing(x, kind):
    """Between the neighbours of every number, from its exponent."""
    exponent = np.frexp(np.abs(x.astype(np.float64)))[1] - 1
    return np.maximum(2.0 ** (exponent - MANTISSA_BITS[kind]), TINIEST[kind])


@kinds
def test_every_number_that_has_16_bits_is_kept_as_it_is(kind):
    patterns = np.arange(1 << 16, dtype=np.uint16).view(STORED[kind])
    numbers = widen(patterns)
    numbers = numbers[np.isfinite(numbers)]
    assert rounded(numbers, kind, seed=3).tobytes() == numbers.tobytes()


@kinds
@pytest.mark.parametrize("name", SMOOTH)
def test_others_go_to_one_of_their_two_neighbours(kind, name):
    x = draw(name, 20_000) * np.float32(10.0) ** np.linspace(-9, 2, 20_000, dtype=np.float32)
    kept = rounded(x, kind, seed=5)
    off = np.abs(kept.astype(np.float64) - x)
    assert (off < spacing(x, kind)).all()
    assert rounded(kept, kind, seed=6).tobytes() == kept.tobytes(), "it is no number of 16 bits"


@kinds
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_odds_are_where_the_number_lies(kind, scale):
    """Means over many draws; 5 standard deviations of a mean of Bernoulli draws."""
    x = (draw("normal", 50) * np.float32(scale)).repeat(4_000)
    kept = np.stack([rounded(x, kind, seed) for seed in range(3)]).astype(np.float64)
    means = kept.reshape(3, 50, 4_000).mean(axis=(0, 2))
    limit = 5 * 0.5 * spacing(x[::4_000], kind) / np.sqrt(12_000)
    assert (np.abs(means - x[::4_000]) < limit).all()


def start(kind, rollback=True):
    configuration = Configuration.create(
        selector={"id": "topk", "density": 0.01},
        memory={"id": "error_feedback", "residual": kind},
        rollback=rollback,
    )
    (spec,) = worlds.tensors((50, 20))
    return Pipeline(configuration, reference), TensorState(spec, configuration)


@kinds
@pytest.mark.parametrize("rollback", [True, False])
def test_gradients_and_rounding_are_what_was_sent_and_what_is_kept(monkeypatch, kind, rollback):
    errors = []

    def noted(x, out, seed):
        narrow(x, out, seed)
        errors.append(np.subtract(widen(out), x, dtype=np.float64).sum())

    monkeypatch.setattr(error_feedback, "narrow", noted)
    pipeline, state = start(kind, rollback)
    given, sent = 0.0, 0.0
    for step in range(30):
        before = len(errors)
        gradient = draw("laplace", 1_000, seed=step)
        given += gradient.sum(dtype=np.float64)
        outgoing = pipeline.send(state, gradient, dense=step % 10 == 9)
        values = outgoing.dense if outgoing.dense is not None else outgoing.found.selection.values
        if step % 7 == 3:
            state.roll_back()
            if rollback:
                given -= gradient.sum(dtype=np.float64)
                del errors[before:]
            continue
        state.commit()
        sent += values.sum(dtype=np.float64)
    kept = state.memory.arrays()["residual"].sum(dtype=np.float64)
    rounding = sum(errors)
    assert rounding != 0
    assert given + rounding == pytest.approx(sent + kept, rel=1e-6, abs=1e-2)


@kinds
def test_small_gradients_are_not_swallowed_by_a_large_residual(kind):
    memory = MEMORIES.create("error_feedback", residual=kind)
    state = memory.create(TensorSpec("t", (400,), "float32"), rollback=False)
    nothing = reference.take_at_least(np.zeros(400, np.float32), 1.0)
    state.load({"residual": np.ones(400, np.float32)})
    for state.step in range(4096):
        state.compensate(np.full(400, 2.0**-13, np.float32), reference)
        state.update(nothing, True)
        state.commit()
    residual = state.arrays()["residual"]
    assert residual.mean() == pytest.approx(1.5, abs=0.02)


def test_what_float16_cannot_hold_is_refused_by_name_and_leaves_no_trace():
    pipeline, state = start("float16")
    pipeline.send(state, draw("normal", 1_000), dense=False)
    state.commit()
    before = state.memory.arrays()["residual"].tobytes()
    with pytest.raises(NonFiniteGradient, match=r"'t0': its residual has an entry .*bfloat16"):
        pipeline.send(state, 1e5 * draw("laplace", 1_000), dense=False)
    state.roll_back()
    assert state.memory.arrays()["residual"].tobytes() == before
    with pytest.raises(NonFiniteGradient, match="residual has an entry of magnitude 160000"):
        state.memory.load({"residual": np.full(1_000, 1.6e5, np.float32)})


def test_float64_gradients_are_not_kept_in_16_bits():
    memory = MEMORIES.create("error_feedback", residual="float16")
    with pytest.raises(InvalidOption, match=r"'t' has float64 gradients.*residual='float32'"):
        memory.create(TensorSpec("t", (9,), "float64"), rollback=True)
