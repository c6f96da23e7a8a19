"""Source of the loss scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hvd_sparse.errors import InvalidOption
from hvd_sparse.tensorflow.host import call_numpy
from hvd_sparse.untyped import GradScaler, Value


def scale_of(grad_scaler: GradScaler) -> Callable[[], tf.Tensor]:
    """Return a function that builds a step's loss scale while a graph is traced.

    The scale of a Keras ``LossScaleOptimizer`` is a variable, which the graph reads (in Keras 3
    from the first step on); a callable is called at every step; None gives 1.

    Raises
    ------
    InvalidOption : it is none of these
    """
    if grad_scaler is None:
        return lambda: tf.constant(1.0, tf.float32)
    if hasattr(grad_scaler, "loss_scale"):
        return lambda: tf.cast(tf.convert_to_tensor(grad_scaler.loss_scale), tf.float32)
    if hasattr(grad_scaler, "dynamic_growth_steps"):
        return lambda: _scale_of_keras_3(grad_scaler)
    if callable(grad_scaler):
        return lambda: _ask(grad_scaler)
    raise InvalidOption(
        f"grad_scaler is {grad_scaler!r}: give the Keras LossScaleOptimizer that scales the loss, "
        "or a callable that returns the scale"
    )


def _scale_of_keras_3(optimizer: GradScaler) -> tf.Tensor:
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return tf.cast(tf.convert_to_tensor(scale), tf.float32)


def _ask(call: Callable[[], Value]) -> tf.Tensor:
    scale = call_numpy(lambda: np.float32(call()), [], tf.float32, name="hvd_sparse_scale")
    scale.set_shape([])
    return scale
