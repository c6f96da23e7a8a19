"""Gradient sparsification for ``horovod.torch``."""

from . import elastic as _elastic
from .compression import Compression, TorchCompressor

_elastic.register()

__all__ = ["Compression", "TorchCompressor"]
