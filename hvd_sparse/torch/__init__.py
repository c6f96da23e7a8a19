"""Gradient sparsification for ``horovod.torch``."""

from .compression import Compression, TorchCompressor

__all__ = ["Compression", "TorchCompressor"]
