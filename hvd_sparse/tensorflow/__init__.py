"""Gradient sparsification for ``horovod.tensorflow`` and ``horovod.tensorflow.keras``."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.frontend.auto import AutoMethod
from hvd_sparse.methods import Methods
from hvd_sparse.tensorflow.checkpoints import CompressorState, LogMetrics, SaveCompressor
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.graph import GraphFallback
from hvd_sparse.tensorflow.local_steps import LocalSteps
from hvd_sparse.tensorflow.optimizer import foresee, read_optimizer
from hvd_sparse.types import Context

__all__ = [
    "Compression",
    "CompressorState",
    "LocalSteps",
    "LogMetrics",
    "SaveCompressor",
    "TensorflowCompressor",
]


class TensorflowSendNothing:
    """The compressor of ``Compression.nothing``, for measuring how long steps take without an
    exchange of gradients. Horovod reduces only the first number of each tensor, and the rank trains
    with its own gradient."""

    @tf.autograph.experimental.do_not_convert
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Context]:
        """Return a tensor for Horovod to reduce, and the gradient, which ``decompress`` returns.
        The tensor is the gradient's first number, and its sum is not used. A constant would not do,
        because TensorFlow reduces a constant only once, and not in every step."""
        return tf.reshape(tensor, [-1])[:1], tensor

    @tf.autograph.experimental.do_not_convert
    def decompress(self, tensor: tf.Tensor, ctx: Context) -> tf.Tensor:
        """Return the rank's own gradient, ``ctx``, after Horovod has reduced the number."""
        with tf.control_dependencies([tensor]):
            return tf.identity(ctx)


class Compression(AutoMethod, Methods):
    """Gradient sparsification for ``horovod.tensorflow`` and ``horovod.tensorflow.keras``.

    ``params`` of every method are a model, a list of variables, or a callable that returns one of
    these. The variables are read at the first gradient, so the first batch may build the model:

        compression = Compression.ldte_bs(model, density=0.001)
        tape = hvd.DistributedGradientTape(tape, compression=compression)

    Make one compressor, outside of the training function, after ``hvd.init()``. Use Horovod's
    wrappers for Keras 2, and those of ``hvd_sparse.keras`` for Keras 3. Gradients may be float16,
    bfloat16, float32 or float64. The residual is float32; for float64 gradients it is float64.
    16-bit gradients of tensors that are not compressed are sent as float32.
    """

    _create = TensorflowCompressor
    _nothing = TensorflowSendNothing
    _read_optimizer = staticmethod(read_optimizer)
    _fallback = GraphFallback
    _foresee = staticmethod(foresee)
