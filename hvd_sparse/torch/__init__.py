"""Gradient sparsification for ``horovod.torch``."""

from __future__ import annotations

import torch
from horovod.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.auto import AutoMethod
from hvd_sparse.frontend.torch.optimizer import foresee, read_optimizer
from hvd_sparse.methods import Methods
from hvd_sparse.torch.compressor import TorchCompressor
from hvd_sparse.torch.local_steps import LocalSteps
from hvd_sparse.types import Context

__all__ = ["Compression", "LocalSteps", "TorchCompressor"]


class TorchSendNothing:
    """The compressor of ``Compression.nothing``: lets Horovod reduce only one number for each
    tensor, and returns the rank's own gradient."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Context]:
        return torch.zeros(1), tensor

    def decompress(self, tensor: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the rank's own gradient. For a sparse gradient, which Horovod exchanges without
        the compressor, return Horovod's result."""
        return tensor if ctx is None else ctx


class Compression(AutoMethod, Methods):
    """Gradient sparsification for ``horovod.torch``.

    ``params`` of every method are ``model.named_parameters()``, the same as given to Horovod:

        compression = Compression.ldte_bs(model.named_parameters(), density=0.001)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                             compression=compression)

    Call ``hvd.init()`` first. Gradients may be float16, bfloat16, float32 or float64. The residual
    is float32; for float64 gradients it is float64. Frozen parameters of other dtypes are ignored.
    Unscale and clip gradients after ``optimizer.synchronize()``; with ``optimizer=``, clip them by
    ``clip_grad_norm=`` instead. Horovod's result would overwrite earlier changes, so
    ChangedGradient is raised if the program makes any.
    """

    _plans_groups = True
    _create = TorchCompressor
    _nothing = TorchSendNothing
    _read_optimizer = staticmethod(read_optimizer)
    _foresee = staticmethod(foresee)

    @classmethod
    def _check_alone(cls, configuration: Configuration) -> None:
        super()._check_alone(configuration)
        if configuration.clip_grad_norm is not None:
            raise InvalidOption(
                f"clip_grad_norm is {configuration.clip_grad_norm} without optimizer= (SGD, Adam, "
                "AdamW, NAdam or Muon), so gradients are sent one by one, before their norm is "
                "known: give optimizer=, or leave clip_grad_norm out and clip the results after "
                "optimizer.synchronize()"
            )


class CompressorStateHandler(StateHandler):  # type: ignore[misc]
    """Commits, restores and redistributes the compressor of ``TorchState(..., compressor=...)``,
    because Horovod's default would pickle it, and give rank 0's residuals to all ranks."""

    def __init__(self, compressor: TorchCompressor) -> None:
        super().__init__(compressor)
        self.save()

    def save(self) -> None:
        self.value.commit()

    def restore(self) -> None:
        self.value.go_back()

    def sync(self) -> None:
        # Like Horovod's handler of the model, this does not commit.
        self.value.rejoin()
        # ``broadcast_optimizer_state``, which follows, may take a step with zero gradients. Let it
        # change the weights on no rank, as on new ranks.
        self.value.has_begun = False


set_handler_registry([(TorchCompressor, CompressorStateHandler), *get_handler_registry()])
