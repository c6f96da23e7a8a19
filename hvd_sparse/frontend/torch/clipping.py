"""``clip_grad_norm``: all gradients of a step are bounded together, before the selection."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from hvd_sparse.collectives.contract import Collective

SMALLEST = 1e-6
"""What torch's ``clip_grad_norm_`` adds to the norm."""


def clip(
    gradients: Sequence[torch.Tensor],
    bound: float,
    collective: Collective,
    name: str,
    limit_s: float | None,
    *,
    scale: float = 1.0,
    is_sum: bool = False,
) -> None:
    """Scale all gradients of a step to a norm of at most the bound, by the same factor on all
    ranks: one number of each is summed.

    The root mean square of the ranks' norms stands for the norm of their average, which it never
    falls below.  Gradients that are not finite stay as they are, and are seen tensor by tensor.

    Parameters
    ----------
    gradients : of this rank, dense or sparse; written to
    bound : number > 0
    collective, name, limit_s : of the sum
    scale : of the loss
    is_sum : the ranks' gradients are summed, not averaged

    Raises
    ------
    ExchangeTimeout : another rank does not come
    """
    parts = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    squares = sum(float(torch.linalg.vector_norm(p, dtype=torch.float64)) ** 2 for p in parts)
    (total,) = collective.allreduce(np.array([squares / scale**2]), name).wait(limit_s)
    norm = math.sqrt(total / collective.world_size) if total >= 0 else math.nan
    if is_sum:
        norm *= collective.world_size
    if norm > bound and math.isfinite(norm):
        for gradient in gradients:
            gradient.mul_(bound / (norm + SMALLEST))
