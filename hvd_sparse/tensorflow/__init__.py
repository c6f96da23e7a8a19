"""Gradient sparsification for ``horovod.tensorflow`` and its Keras."""

from hvd_sparse.tensorflow.api import Compression
from hvd_sparse.tensorflow.callback import LogMetrics
from hvd_sparse.tensorflow.checkpoints import CompressorState, SaveCompressor
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
