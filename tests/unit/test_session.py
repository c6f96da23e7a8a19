"""The laws over whole runs of small worlds."""

import itertools

import cases
import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import configure, integers, normals, residuals, tensors

from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.session import Session

SHAPES = ((40, 30), (17,), (3, 4, 5), (), (1, 1))


def train(collective, configuration, specs, steps, draw=normals):
    session = Session(configuration, specs, collective)
    reduced = [session.reduce(draw(specs, collective.rank, step)) for step in range(steps)]
    return reduced, residuals(session)


@st.composite
def settings_of_a_world(draw):
    shape = st.lists(st.integers(1, 7), max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=4))
    return {
        "world_size": draw(st.sampled_from([1, 2, 4, 8])),
        "specs": tensors(*shapes, dtype=draw(st.sampled_from(["float32", "float64"]))),
        "density": draw(st.sampled_from([0.01, 0.1, 0.37, 0.9, 1.0])),
        "selector": draw(st.sampled_from(cases.SELECTORS)),
        "rollback": draw(st.booleans()),
        "steps": draw(st.integers(1, 4)),
    }


@settings(max_examples=40)
@given(world=settings_of_a_world())
def test_sent_and_kept_entries_of_all_ranks_are_all_gradients_exactly(world):
    """(3) Exact for whole numbers on 2**i ranks, but where other values are sent."""
    specs, steps, size = world["specs"], world["steps"], world["world_size"]
    selector = world["selector"].create(SELECTORS, density=world["density"])
    configuration = configure(selector, rollback=world["rollback"])
    outcomes = worlds.run(size, lambda c: train(c, configuration, specs, steps, integers))
    for spec in specs:
        places = itertools.product(range(size), range(steps))
        given_in = sum(integers(specs, *place)[spec.key].astype(float) for place in places)
        averages = sum(reduced[spec.key].astype(float) for reduced in outcomes[0][0])
        kept = sum(left[spec.key].astype(float) for _, left in outcomes).reshape(spec.shape)
        slack = 1e-5 * size * steps * 10 if configuration.selector.changes_values else 0
        np.testing.assert_allclose(size * averages + kept, given_in, rtol=0, atol=slack)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_have_the_shape_and_dtype_of_the_gradients(dtype):
    specs = tensors(*SHAPES, dtype=dtype)
    (reduced,), _ = worlds.run(1, lambda c: train(c, configure(density=1.0), specs, 1))[0]
    for key, gradient in normals(specs, 0, 0).items():
        assert (reduced[key].shape, reduced[key].dtype) == (gradient.shape, gradient.dtype)
        assert worlds.same_bits(reduced[key], gradient)


def test_non_contiguous_gradients_are_read_right_and_left_alone():
    specs = tensors((6, 4))

    def script(collective):
        base = np.arange(24, dtype=np.float32).reshape(4, 6)
        base.flags.writeable = False
        reduced = Session(configure(density=1.0), specs, collective).reduce({"t0": base.T})["t0"]
        return worlds.same_bits(reduced, np.ascontiguousarray(base.T))

    assert worlds.run(2, script) == [True, True]


def test_tensors_that_are_not_compressed_are_averaged_dense_and_keep_no_state():
    specs = tensors((40, 30), (5, 2), (2000,), (0, 3))
    configuration = configure(density=0.5, min_numel=100, compress_1d=False)
    outcomes = worlds.run(2, lambda c: train(c, configuration, specs, 1, integers))
    reduced, left = outcomes[0]
    assert set(left) == {"t0"}
    for key in ("t1", "t2", "t3"):
        expected = (integers(specs, 0, 0)[key] + integers(specs, 1, 0)[key]) / 2
        assert reduced[0][key].tolist() == expected.tolist()


def test_every_entry_is_sent_in_the_end():
    specs = tensors((20, 5))

    def script(collective):
        session = Session(configure(density=0.05), specs, collective)
        gradient = np.linspace(0.1, 1.0, 100, dtype=np.float32).reshape(20, 5)
        applied = sum(session.reduce({"t0": gradient})["t0"] for _ in range(2_000)) / 2_000
        np.testing.assert_allclose(applied, gradient, rtol=0.2)

    worlds.run(1, script)
