"""Numbers of optimizers' steps: of Adam's moments, and of the iteration of Newton and Schulz."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np


class AdamStep(NamedTuple):
    """The numbers of a step.

    beta1, beta2, epsilon : Adam's
    step : of the tensor, the first is 1
    ranks : the second moment is that of the average of so many ranks; with 1 it is the gradient's
        own
    scale : factor of the direction
    is_of_mean : the direction is the mean's, as in Adam; else the gradient's
    is_at_rest : the moments have this gradient already, and stay as they are
    """

    beta1: float
    beta2: float
    epsilon: float
    step: int
    ranks: int = 1
    scale: float = 1.0
    is_of_mean: bool = False
    is_at_rest: bool = False

    # The same for all tensors of a step.  A step holds plain numbers alone, which may be kept.
    @lru_cache(maxsize=64)  # noqa: B019
    def factors(self, dtype: np.dtype) -> tuple[np.floating, ...]:
        """Return the kernel's factors, in its order, rounded to the data's dtype."""
        own = 1 / self.ranks
        beta1, beta2 = (1.0, 1.0) if self.is_at_rest else (self.beta1, self.beta2)
        numbers = (
            beta1,
            1 - beta1,
            1 / (1 - self.beta1**self.step),
            beta2,
            1 - beta2,
            1 / (1 - self.beta2**self.step),
            own,
            1 - own,
            self.epsilon,
            self.scale,
        )
        return tuple(dtype.type(number) for number in numbers)


class NewtonSchulz(NamedTuple):
    """The numbers of an iteration, by which Muon makes singular values about equal.

    shape : of the matrix, or of a stack of them: rows and columns come last
    steps : how often the polynomial is applied
    coefficients : a, b and c of a * x + b * x**3 + c * x**5, applied to each singular value x
    epsilon : is added to the norm that a matrix is divided by at first
    """

    shape: tuple[int, ...]
    steps: int = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    epsilon: float = 1e-7


def matrices_in(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the matrices in a tensor; a convolution has a row for each output
    channel.

    Examples
    --------
    >>> [matrices_in(shape) for shape in ((8, 4), (8, 4, 3, 3), (2, 8, 4))]
    [(8, 4), (8, 36), (2, 8, 4)]
    """
    if len(shape) != 4:
        return shape
    rows, *rest = shape
    return rows, int(np.prod(rest))


def iterated(x: Any, step: NewtonSchulz) -> Any:
    """Return the result of the iteration on arrays or tensors of ``step.shape``, of norms up to
    1."""
    a, b, c = step.coefficients
    is_tall = step.shape[-2] > step.shape[-1]
    if is_tall:  # so that the products are of the smaller size
        x = x.swapaxes(-1, -2)
    for _ in range(step.steps):
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.swapaxes(-1, -2) if is_tall else x
