"""Momentum must be applied once: taking it out of an SGD, and finding it where it was left in."""

from __future__ import annotations

import logging
from typing import Any

import torch

from hvd_sparse.errors import InvalidOption, UnsupportedInput

logger = logging.getLogger("hvd_sparse")


def take_momentum(optimizer: torch.optim.Optimizer) -> tuple[float, bool, float]:
    """Set an SGD's momentum, Nesterov and weight decay to zero; return what they were, and say
    so."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise UnsupportedInput(
            f"{type(optimizer).__name__} has no momentum that could be corrected: use "
            "torch.optim.SGD with dgc, "
            "or a method with error_feedback, which goes with any optimizer"
        )
    settings = {
        (g["momentum"], g["nesterov"], g["weight_decay"], g["dampening"])
        for g in optimizer.param_groups
    }
    if len(settings) > 1 or next(iter(settings))[3]:
        raise InvalidOption(
            "the optimizer's parameter groups have (momentum, nesterov, weight_decay, dampening) "
            f"{sorted(settings)}: "
            "momentum correction needs one setting for all, without dampening"
        )
    momentum, nesterov, weight_decay, _ = settings.pop()
    for group in [*optimizer.param_groups, optimizer.defaults]:
        group.update(momentum=0.0, nesterov=False, weight_decay=0.0)
    logger.warning(
        "momentum %g%s and weight decay %g were taken out of the optimizer; the compressor "
        "applies them",
        momentum, " (Nesterov)" if nesterov else "", weight_decay,
    )  # fmt: skip
    return momentum, nesterov, weight_decay


def refuse_momentum(optimizer: Any) -> None:
    """InvalidOption for an optimizer with momentum behind a memory that applies it already."""
    for group in optimizer.param_groups:
        if group.get("momentum") or "betas" in group:
            what = (
                f"momentum {group['momentum']}"
                if group.get("momentum")
                else f"betas {group['betas']}"
            )
            raise InvalidOption(
                f"the optimizer has {what}, and momentum correction applies momentum already: "
                "doubled momentum diverges; "
                "give the optimizer to Compression.dgc(..., optimizer=optimizer), or use SGD "
                "without momentum"
            )
