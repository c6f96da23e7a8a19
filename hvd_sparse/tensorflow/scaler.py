"""Where the loss scale comes from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import GradScaler, Value


def scale_of(grad_scaler: GradScaler) -> Callable[[], tf.Tensor]:
    """Builds what gives the scale at every step: a Keras ``LossScaleOptimizer``'s, or a callable's;
    1 for None.

    Called while a graph is traced.  The optimizer's scale is a variable, which the graph reads; a
    callable is asked anew at every step.
    """
    if grad_scaler is None:
        return lambda: tf.constant(1.0, tf.float32)
    if hasattr(grad_scaler, "loss_scale"):
        return lambda: tf.cast(tf.convert_to_tensor(grad_scaler.loss_scale), tf.float32)
    if callable(grad_scaler):
        return lambda: _ask(grad_scaler)
    raise InvalidOption(
        f"grad_scaler is {grad_scaler!r}: give the tf.keras.mixed_precision.LossScaleOptimizer "
        "that scales the loss, or a "
        "callable that returns the scale"
    )


def _ask(call: Callable[[], Value]) -> tf.Tensor:
    scale = tf.numpy_function(lambda: np.float32(call()), [], tf.float32, name="hvd_sparse_scale")
    scale.set_shape([])
    return scale
