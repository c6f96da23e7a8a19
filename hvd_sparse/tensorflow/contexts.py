"""Contexts: what ``compress`` hands to ``decompress`` while a graph is traced."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from hvd_sparse.tensorflow.bucket import GraphBucket
from hvd_sparse.types import TensorSpec


@dataclass(frozen=True, eq=False)
class SparseContext:
    """A compressed gradient on its way, and the bucket that it is in."""

    number: tf.Tensor
    bucket: GraphBucket
    flat: tf.Tensor
    spec: TensorSpec
    dtype: tf.DType
    shape: tf.TensorShape
    parameter: tf.Tensor


@dataclass(frozen=True, eq=False)
class DenseContext:
    """A gradient that Horovod's allreduce takes, as float32 where it has 16 bits."""

    dtype: tf.DType
    token: tf.Tensor
    scale: tf.Tensor
    parameter: tf.Tensor
