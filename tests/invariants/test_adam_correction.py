"""Adam before the selection, against Adam's definition."""

import numpy as np
import pytest
import worlds
from conformance.memory_checks import every_nth
from distributions import draw

from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.kernels import reference
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec

NUMEL, STEPS, BETA1, BETA2, EPSILON = 60, 12, 0.9, 0.99, 1e-3
SPEC = TensorSpec("t", (NUMEL,), "float64")
OPTIONS = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}


def moments_of(gradients):
    """Mean and square of gradients so far, as Kingma and Ba define them."""
    count = len(gradients)
    first = sum((1 - BETA1) * BETA1 ** (count - 1 - i) * g for i, g in enumerate(gradients)) / (
        1 - BETA1**count
    )
    second = sum(
        (1 - BETA2) * BETA2 ** (count - 1 - i) * g * g for i, g in enumerate(gradients)
    ) / (1 - BETA2**count)
    return first, second


@pytest.mark.parametrize("is_average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("world_size", [1, 4, 32])
def test_what_is_added_is_the_gradient_over_the_root_of_the_averages_second_moment(
    world_size, is_average
):
    state = MEMORIES.create("adam_correction", **OPTIONS).create(SPEC, rollback=True)
    state.is_average = is_average
    gradients, residual = [], np.zeros(NUMEL)
    for step in range(STEPS):
        gradients.append(draw("normal", NUMEL, "float64", step) + 0.3)
        mean, square = moments_of(gradients)
        of_average = square / world_size + (1 - 1 / world_size) * np.minimum(mean**2, square)
        expected = (
            gradients[-1] / (np.sqrt(of_average) + EPSILON) / (1 if is_average else world_size)
        )
        state.step = step
        accumulated = state.compensate(gradients[-1], reference, world_size).vector.copy()
        np.testing.assert_allclose(accumulated, residual + expected, rtol=1e-9)
        sent = every_nth(accumulated, 5)
        state.update(sent, True, reference)
        state.commit()
        residual = state.arrays()["residual"].copy()


def test_a_tensor_that_is_never_compressed_gets_adam_on_what_arrives():
    state = MEMORIES.create("adam_correction", **OPTIONS).create(SPEC, rollback=True)
    gradients, parameter = [], draw("uniform", NUMEL, "float64")
    for step in range(STEPS):
        given = draw("normal", NUMEL, "float64", step)
        gradients.append(given)
        mean, square = moments_of(gradients)
        state.step = step
        finished = state.finish(given, parameter, False, reference)
        np.testing.assert_allclose(finished, mean / (np.sqrt(square) + EPSILON), rtol=1e-9)
        state.commit()


@pytest.mark.parametrize("rollback", [True, False])
def test_a_gradient_whose_square_overflows_is_not_finite_and_leaves_no_trace(rollback):
    spec = TensorSpec("t", (NUMEL,), "float32")
    state = MEMORIES.create("adam_correction").create(spec, rollback=rollback)
    state.compensate(draw("normal", NUMEL), reference)
    state.commit()
    before = worlds.bits_of(state.arrays())
    huge = np.full(NUMEL, 1e25, np.float32)
    if rollback:
        moments = state.compensate(huge, reference).moments
        assert moments is not None and not moments.is_finite
    else:
        with pytest.raises(NonFiniteGradient, match="square exceeds the range of float32"):
            state.compensate(huge, reference)
    state.roll_back()
    assert worlds.bits_of(state.arrays()) == before
