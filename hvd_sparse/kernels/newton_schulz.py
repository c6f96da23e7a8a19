"""Newton and Schulz's iteration, by which Muon makes a matrix's singular values about equal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class NewtonSchulz(NamedTuple):
    """The numbers of an iteration.

    Attributes
    ----------
    shape : of the matrix, or of a stack of them: rows and columns come last
    steps : how often the polynomial is applied
    coefficients : a, b and c of a * x + b * x**3 + c * x**5, which each singular value x goes
        through
    epsilon : is added to the norm that a matrix is divided by at first
    """

    shape: tuple[int, ...]
    steps: int = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    epsilon: float = 1e-7


def matrices_in(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the matrices in a tensor: a convolution's is one row an output channel.

    Parameters
    ----------
    shape : of the tensor, of two dimensions or more

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
    """Return the matrices that the iteration ends with.

    Parameters
    ----------
    x : an array or a tensor of ``step.shape``, of matrices whose Frobenius norms are 1 at most
    step : the numbers
    """
    a, b, c = step.coefficients
    is_tall = step.shape[-2] > step.shape[-1]
    if is_tall:  # so that the products are of the smaller size
        x = x.swapaxes(-1, -2)
    for _ in range(step.steps):
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.swapaxes(-1, -2) if is_tall else x
