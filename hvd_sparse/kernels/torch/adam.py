"""Adam's moments in torch operations, each of which rounds as numpy's does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hvd_sparse.kernels.adam import AdamStep


def push(vectors: Sequence[torch.Tensor], step: AdamStep) -> None:
    """Write the moments and the direction, as ``Kernels.push_adam`` says.

    vectors : in the order of its arguments
    """
    gradient, mean, square, out_mean, out_square, out = vectors
    dtype = np.dtype(np.float64 if out.dtype == torch.float64 else np.float32)
    factors = (float(factor) for factor in step.factors(dtype))
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale = factors
    # Never a factor given to add: a device could fuse the two.
    torch.add(mean * beta1, gradient * rest1, out=out_mean)
    torch.add(square * beta2, (gradient * gradient).mul_(rest2), out=out_square)
    first, second = out_mean * unbias1, out_square * unbias2
    average = (second * own).add_(torch.minimum(first * first, second).mul_(others))
    top = first if step.is_of_mean else gradient
    torch.div(top, _root(average).add_(epsilon), out=out)
    out.add_(average.mul_(0.0)).mul_(scale)


def _root(x: torch.Tensor) -> torch.Tensor:
    """Return the square roots, rounded correctly: torch's own are so on some devices only."""
    if x.dtype == torch.float32:
        return x.double().sqrt().float()
    near = x.sqrt()
    # What is left of x, exactly: the square of the root's two halves, product by product (Dekker).
    large = near * 134217729.0
    high = large - (large - near)
    low = near - high
    square = near * near
    beyond = (high * high - square) + (high * low) * 2.0 + low * low
    better = near + ((x - square) - beyond) / (near * 2.0)
    return torch.where(torch.isfinite(better), better, near)
