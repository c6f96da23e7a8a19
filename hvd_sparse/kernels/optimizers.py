"""Optimizers' updates without the learning rate: SGD, momentum, Adam, and Muon's iteration."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Union

import numpy as np

LEAST_PART = 0.25
"""An estimated second moment contains at least this part of what the present gradient adds to this
rank's second moment. Otherwise, if a gradient came on all ranks at once after many steps without
one, it would move the entry farther than Adam does, by the root of the number of ranks."""


class AdamStep(NamedTuple):
    """The numbers of one Adam step.

    beta1, beta2, epsilon : Adam's options
    step : number of the tensor's step, from 1
    ranks : number of ranks over which gradients are averaged. The direction is computed from the
        second moment of the average gradient, which is estimated from this rank's moments. With 1
        rank, and in the first step, it is this rank's second moment
    scale : factor by which the direction is multiplied
    is_of_mean : True if the direction's numerator is the first moment, as in Adam; False if it is
        the gradient
    is_at_rest : True if the moments already include this gradient, and are not changed
    """

    beta1: float
    beta2: float
    epsilon: float
    step: int
    ranks: int = 1
    scale: float = 1.0
    is_of_mean: bool = False
    is_at_rest: bool = False

    # Cached because all tensors of a step have the same factors.
    @lru_cache(maxsize=64)  # noqa: B019
    def factors(self, dtype: np.dtype) -> tuple[np.floating, ...]:
        """Return the numbers from which ``Kernels.directed`` computes Adam's direction, rounded to
        the dtype, in the order in which it unpacks them."""
        before = self.step - 1
        own = 1 / self.ranks if before else 1.0
        beta1, beta2 = (1.0, 1.0) if self.is_at_rest else (self.beta1, self.beta2)
        numbers = (
            beta1,
            1 - beta1,
            1 / (1 - self.beta1 ** (self.step if self.is_of_mean else max(1, before))),
            beta2,
            1 - beta2,
            1 / (1 - self.beta2**self.step),
            own,
            1 - own,
            self.epsilon,
            self.scale,
        )
        return tuple(dtype.type(number) for number in numbers)


class Decay(NamedTuple):
    """The direction of SGD with L2 penalty, without momentum: decay * parameter + gradient."""

    parameter: np.ndarray
    decay: float


class Momentum(NamedTuple):
    """The direction of SGD with momentum, and the velocity before and after the step.

    out_velocity = momentum * velocity + gradient
    direction = out_velocity, or momentum * out_velocity + gradient with Nesterov
    """

    velocity: np.ndarray
    out_velocity: np.ndarray
    momentum: float
    is_nesterov: bool = False


class Adam(NamedTuple):
    """Adam's direction, and the moments before and after the step.

        out_mean = beta1 * mean + (1 - beta1) * gradient
        out_square = beta2 * square + (1 - beta2) * gradient**2
        m, s = mean and out_square with bias correction
        average = s / ranks + min(m**2, s) * (1 - 1 / ranks)
        average = max(average, LEAST_PART * what gradient**2 adds to s)
        direction = (gradient / (sqrt(average) + epsilon) + 0 * average) * scale

    ``average`` estimates the second moment of the ranks' average gradient; in the first step, it is
    s. ``0 * average`` makes the direction NaN if a square overflows. The bias of m is corrected for
    step - 1 gradients. With ``step.is_of_mean``, m is out_mean, corrected for ``step`` gradients,
    and replaces the gradient in the last line.
    """

    mean: np.ndarray
    square: np.ndarray
    out_mean: np.ndarray
    out_square: np.ndarray
    step: AdamStep


Direction = Union[Decay, Momentum, Adam]


def operands(
    direction: Direction | None, dtype: np.dtype
) -> tuple[tuple[np.ndarray, ...], tuple[float | np.floating, ...]]:
    """Return two tuples: a direction's vectors, and its numbers, rounded to the dtype. Both are
    empty if the direction is None."""
    if direction is None:
        return (), ()
    if isinstance(direction, Decay):
        return direction[:1], (dtype.type(direction.decay),)
    if isinstance(direction, Momentum):
        return direction[:2], (dtype.type(direction.momentum), direction.is_nesterov)
    return direction[:4], (*direction.step.factors(dtype), direction.step.is_of_mean)


class NewtonSchulz(NamedTuple):
    """Options of the Newton-Schulz iteration, which makes a matrix's singular values nearly equal.

    shape : shape of the matrix, or of a stack of matrices in the last two axes
    steps : number of iterations
    coefficients : a, b and c of the polynomial a * x + b * x**3 + c * x**5, which an iteration
        applies to each singular value x
    epsilon : added to the norm by which the matrix is divided before the iteration
    """

    shape: tuple[int, ...]
    steps: int = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    epsilon: float = 1e-7


def matrices_in(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which a tensor is treated as matrices. A convolution's weight (4-D)
    becomes a matrix with a row for each output channel.

    >>> [matrices_in(shape) for shape in ((8, 4), (8, 4, 3, 3), (2, 8, 4))]
    [(8, 4), (8, 36), (2, 8, 4)]
    """
    if len(shape) != 4:
        return shape
    rows, *rest = shape
    return rows, int(np.prod(rest))


def iterated(x: Any, step: NewtonSchulz) -> Any:
    """Return x, of shape ``step.shape``, after the Newton-Schulz iteration. Each matrix in the
    given x must have a Frobenius norm of at most 1."""
    a, b, c = step.coefficients
    is_tall = step.shape[-2] > step.shape[-1]
    if is_tall:  # transposed, the products below are smaller
        x = x.swapaxes(-1, -2)
    for _ in range(step.steps):
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.swapaxes(-1, -2) if is_tall else x
