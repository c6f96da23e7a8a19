"""Gradient sparsification for ``horovod.tensorflow`` and its Keras."""

from .compression import Compression, TensorflowCompressor

__all__ = ["Compression", "TensorflowCompressor"]
