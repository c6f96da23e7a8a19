"""``Compression.nothing`` for TensorFlow and Keras."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.frontend.nothing import SendNothing
from hvd_sparse.untyped import Context


class TensorflowSendNothing(SendNothing):
    """Gives Horovod one number a tensor, and every rank its own gradient back."""

    @tf.autograph.experimental.do_not_convert
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Context]:
        """Return a number for Horovod, and the gradient; groups of Horovod's want one dtype."""
        return tf.zeros([1], tensor.dtype), tensor

    @tf.autograph.experimental.do_not_convert
    def decompress(self, tensor: tf.Tensor, ctx: Context) -> tf.Tensor:
        """Return the rank's own gradient, once the number is there."""
        with tf.control_dependencies([tensor]):
            return tf.identity(ctx)
