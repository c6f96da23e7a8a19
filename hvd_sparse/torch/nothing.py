"""``Compression.nothing`` for PyTorch."""

from __future__ import annotations

import torch

from hvd_sparse.frontend.nothing import SendNothing
from hvd_sparse.untyped import Context


class TorchSendNothing(SendNothing):
    """Gives Horovod one number a tensor, and every rank its own gradient back."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Context]:
        """Return a number for Horovod, and the gradient."""
        return torch.zeros(1), tensor

    def decompress(self, tensor: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the rank's own gradient; a sparse one came without a context, and is passed on."""
        return tensor if ctx is None else ctx
