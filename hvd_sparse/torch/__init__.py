"""Gradient sparsification for ``horovod.torch``."""

from hvd_sparse.torch import elastic as _elastic
from hvd_sparse.torch.api import Compression
from hvd_sparse.torch.compressor import TorchCompressor
from hvd_sparse.torch.local_steps import LocalSteps

_elastic.register()

__all__ = ["Compression", "LocalSteps", "TorchCompressor"]
