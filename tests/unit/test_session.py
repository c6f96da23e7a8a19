"""The laws over whole runs of small worlds."""

import itertools

import cases
import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import configure, integers, residuals, tensors

from hvd_sparse.registry import SELECTORS
from hvd_sparse.step.session import Session


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

    def script(collective):
        session = Session(configuration, specs, collective)
        given = (integers(specs, collective.rank, step) for step in range(steps))
        return list(map(session.reduce, given)), residuals(session)

    outcomes = worlds.run(size, script)
    for spec in specs:
        places = itertools.product(range(size), range(steps))
        given_in = sum(integers(specs, *place)[spec.key].astype(float) for place in places)
        averages = sum(reduced[spec.key].astype(float) for reduced in outcomes[0][0])
        kept = sum(left[spec.key].astype(float) for _, left in outcomes).reshape(spec.shape)
        slack = 1e-5 * size * steps * 10 if configuration.selector.changes_values else 0
        np.testing.assert_allclose(size * averages + kept, given_in, rtol=0, atol=slack)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_are_like_the_gradients_which_may_be_in_any_layout_and_are_left_alone(dtype):
    base = np.arange(24, dtype=dtype).reshape(4, 6)
    base.flags.writeable = False
    given = {"t0": base.T, "t1": np.array(3, dtype)}

    def script(collective):
        specs = tensors((6, 4), (), dtype=dtype)
        return Session(configure(density=1.0), specs, collective).reduce(given)

    for reduced in worlds.run(2, script):
        assert all(worlds.same_bits(reduced[key], gradient) for key, gradient in given.items())


def test_every_entry_is_sent_in_the_end():
    specs = tensors((20, 5))

    def script(collective):
        session = Session(configure(density=0.05), specs, collective)
        gradient = np.linspace(0.1, 1.0, 100, dtype=np.float32).reshape(20, 5)
        applied = sum(session.reduce({"t0": gradient})["t0"] for _ in range(2_000)) / 2_000
        np.testing.assert_allclose(applied, gradient, rtol=0.2)

    worlds.run(1, script)
