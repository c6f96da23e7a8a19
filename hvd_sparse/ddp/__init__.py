"""Gradient sparsification for PyTorch's DistributedDataParallel, without Horovod."""

from hvd_sparse.ddp.api import register
from hvd_sparse.ddp.compressor import DdpCompressor

__all__ = ["DdpCompressor", "register"]
