"""Gradient sparsification for ``horovod.torch``."""

from hvd_sparse.torch.api import Compression
from hvd_sparse.torch.compressor import TorchCompressor
from hvd_sparse.torch.local_steps import LocalSteps

__all__ = ["Compression", "LocalSteps", "TorchCompressor"]
