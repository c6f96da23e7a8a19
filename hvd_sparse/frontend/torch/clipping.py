"""``clip_grad_norm``: all gradients of a step are bounded together, before the selection.

Horovod's optimizer is held back until all are there: its hooks would send each gradient as it
comes, before the norm of all is known.  What they leave, ``synchronize`` sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import Optimizer, Value

SMALLEST = 1e-6
"""Added to the norm, as by torch's ``clip_grad_norm_``."""


def clip(
    gradients: Sequence[torch.Tensor],
    bound: float,
    collective: Collective,
    name: str,
    limit_s: float | None,
    scale: float,
    is_sum: bool,
) -> None:
    """Scale all gradients of a step to a norm of at most the bound, by the same factor on all
    ranks: one number of each is summed.

    The root mean square of the ranks' norms stands for the norm of their average, which it never
    falls below.  Gradients that are not finite stay as they are, and are seen tensor by tensor.

    scale : of the loss
    is_sum : the ranks' gradients are summed, not averaged
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


def hold_back(cls: Any, clip: Callable[[Optimizer, list[torch.Tensor]], None]) -> None:
    """Let the optimizers of a class that Horovod has derived from a handed-over one's call ``clip``
    with all their gradients, before they send the first."""
    send, synchronize = cls._allreduce_grad_async, cls.synchronize
    cls._hvd_sparse_is_complete = False

    def send_if_complete(self: Optimizer, parameter: torch.nn.Parameter) -> Value:
        return send(self, parameter) if self._hvd_sparse_is_complete else (None, None)

    def refuse(self: Optimizer, _: Value) -> None:
        raise InvalidOption(
            "groups is given to hvd.DistributedOptimizer, which then sends gradients that "
            "clip_grad_norm waits for: give groups to the compressor instead"
        )

    def clip_and_synchronize(self: Optimizer) -> None:
        if self.process_set.included():
            held = (p for group in self.param_groups for p in group["params"])
            clip(self, [p.grad for p in held if p.requires_grad and p.grad is not None])
        self._hvd_sparse_is_complete = True
        try:
            synchronize(self)
        finally:
            self._hvd_sparse_is_complete = False

    cls._allreduce_grad_async, cls._grouped_allreduce_grad_async = send_if_complete, refuse
    cls.synchronize = clip_and_synchronize


def clip_alone(parameters: list[torch.Tensor], bound: float) -> Any:
    """Clip gradients before an optimizer steps, in a world of one rank, where Horovod calls no
    compressor; return the hook's handle."""
    mine = set(parameters)

    def look(optimizer: Optimizer, *_: object) -> None:
        held = {p for group in optimizer.param_groups for p in group["params"]}
        if mine & held:
            torch.nn.utils.clip_grad_norm_(held, bound)

    return register_optimizer_step_pre_hook(look)
