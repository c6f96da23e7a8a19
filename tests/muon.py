"""Muon with the class names and options of its reference implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.accuracy.muon import SingleDeviceMuonWithAuxAdam


class SingleDeviceMuon(torch.optim.Optimizer):
    """A class that is recognized, and makes no step."""

    def __init__(
        self, params: Any, lr: float = 0.02, weight_decay: float = 0, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    def step(self, closure: Any = None) -> None:
        raise NotImplementedError


def paired(parameters: Iterable[torch.Tensor], **of_matrices: Any) -> SingleDeviceMuonWithAuxAdam:
    both: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for parameter in parameters:
        both[parameter.ndim > 1].append(parameter)
    adam = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}
    options = [adam, {"lr": 0.02, "momentum": 0.95, **of_matrices}]
    return SingleDeviceMuonWithAuxAdam(
        [
            {"params": own, "use_muon": bool(use), **options[use]}
            for use, own in enumerate(both)
            if own
        ]
    )
