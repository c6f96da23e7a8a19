"""Gradient sparsification for ``horovod.tensorflow`` and its Keras."""

from hvd_sparse.tensorflow.api import Compression
from hvd_sparse.tensorflow.checkpoints import CompressorState, SaveCompressor
from hvd_sparse.tensorflow.compressor import TensorflowCompressor

__all__ = ["Compression", "CompressorState", "SaveCompressor", "TensorflowCompressor"]
