"""Gradient sparsification for ``horovod.tensorflow`` and its Keras."""

from hvd_sparse.tensorflow.api import Compression
from hvd_sparse.tensorflow.checkpoints import CompressorState, LogMetrics, SaveCompressor
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.local_steps import LocalSteps

__all__ = [
    "Compression",
    "CompressorState",
    "LocalSteps",
    "LogMetrics",
    "SaveCompressor",
    "TensorflowCompressor",
]
