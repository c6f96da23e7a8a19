"""Gradient sparsification for ``horovod.tensorflow`` and its Keras."""

from .checkpoints import CompressorState, SaveCompressor
from .compression import Compression, TensorflowCompressor

__all__ = ["Compression", "CompressorState", "SaveCompressor", "TensorflowCompressor"]
