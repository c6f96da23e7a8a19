"""Operations of the graph that are done on the host, whatever device the gradients are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from hvd_sparse.untyped import Value

HOST = "/CPU:0"
"""Where numpy's functions and our collectives run.  TensorFlow copies a gradient there once, and
the result to where it is used."""


def call_numpy(
    function: Callable[..., Value],
    inputs: Sequence[tf.Tensor],
    dtypes: tf.DType | Sequence[tf.DType],
    *,
    name: str,
) -> Value:
    """Return an operation that calls a function of arrays, pinned to the host.

    Parameters
    ----------
    function : numpy in, numpy out
    inputs : its input tensors
    dtypes : of its results
    name : of the operation
    """
    with tf.device(HOST):
        return tf.numpy_function(function, inputs, dtypes, name=name)
