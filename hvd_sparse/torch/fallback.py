"""The compressor that measures whether it is worth while, and steps aside where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hvd_sparse.autotune.fallback import SteppingAside
from hvd_sparse.autotune.measurements import StepStarts
from hvd_sparse.autotune.trial import SPARSE, Trial
from hvd_sparse.core.step.records import Ticket
from hvd_sparse.errors import SparseError
from hvd_sparse.torch.arrays import check_device, like
from hvd_sparse.torch.compressor import TorchCompressor


@dataclass(eq=False)
class Passing:
    """A gradient that Horovod averages as it is, or as float16."""

    gradient: torch.Tensor
    key: str


class AutoCompressor(SteppingAside, TorchCompressor):
    """A ``TorchCompressor`` whose steps go the way that a trial says.  Made by
    ``Compression.auto``.

    On a dense way gradients are Horovod's own business, without a copy and without a carrier; but
    first every tensor has one step that sends its residual along.
    """

    def __init__(
        self, params: Any, configuration: Any, process_set: Any, grad_scaler: Any, trial: Trial
    ) -> None:
        super().__init__(params, configuration, process_set, grad_scaler)
        self._begin_trial(trial)
        self._way = SPARSE
        self._starts = StepStarts()

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if isinstance(tensor, torch.nn.Parameter):
            return super().compress(tensor)  # which says what is wrong
        self._greet()
        try:
            position = self._index.find(tensor)
            spec = self.step.specs[position]
            check_device(spec.key, tensor)
        except SparseError:
            return super().compress(tensor)
        if self._starts.begins(position):
            self._way = self._next_way()
        if self._way == SPARSE or self._still_owes(position):
            return self._compress(position, tensor)
        self.watchdog.ledger.begin(spec.key)
        wire = (
            tensor.half()
            if self._way == "fp16" and tensor.dtype in (torch.float32, torch.float64)
            else tensor
        )
        wire = wire.float() if wire.dtype == torch.bfloat16 else wire
        self.step.stats.count_bytes("dense", wire.numel() * wire.element_size())
        return wire.contiguous(), Passing(tensor, spec.key)

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        self._starts.end()
        try:
            if not isinstance(ctx, Passing):
                result = super().decompress(tensor, ctx)
            else:
                result = like(tensor, ctx.gradient)
                self.watchdog.ledger.end(ctx.key)
        except Exception:
            self._clock.fail()
            raise
        self._clock.end()
        return result

    def _still_owes(self, position: int) -> bool:
        """Whether a residual has not yet been sent.  All results of the last step are there, on all
        ranks."""
        if self._debts.is_paid(position):
            self._debts.settle(position)
        return self._debts.is_owed(position)

    def _compress(self, position: int, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        spec = self.step.specs[position]
        self._sends_everything = self._way != SPARSE
        wire, ticket = super().compress(tensor)
        if self.configuration.is_sparse(spec.shape, spec.numel):
            if self._sends_everything and isinstance(ticket, Ticket):
                self._debts.pay(position, ticket.run)
            else:
                self._debts.owe(position)
        return wire, ticket

    def _forget_world(self) -> None:
        super()._forget_world()
        self._starts = StepStarts()
