"""A step of Adam's moments, as the kernel that makes it is told of it."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class AdamStep(NamedTuple):
    """The numbers of a step.

    Attributes
    ----------
    beta1, beta2, epsilon : Adam's
    step : of the tensor, the first is 1
    ranks : of whose average the second moment is wanted; with 1 it is the gradient's own
    scale : by which the direction is multiplied
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
        """Return what the kernel multiplies with, in its order, rounded to the data's dtype."""
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
