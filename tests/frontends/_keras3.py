"""Training with Keras 3 and gradients that are averaged by hand."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "0"  # before TensorFlow is imported

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _keras_models import (
    BATCH_SIZE,
    BATCHES,
    FEATURES,
    RATE,
    Make,
    data_of_rank,
    fit,
    make_built_model,
    make_model,
    params_of,
    setting_of_groups,
    weights_of,
)
from _tensorflow_cases import Compression, hvd

from hvd_sparse.keras import DistributedOptimizer


def train_by_hand(
    model: Any,
    optimizer: Any,
    name: str,
    op: Any,
    process_set: Any,
    passes: int = 1,
    momenta: dict[int, float] | None = None,
) -> np.ndarray:
    """Train as ``fit`` does, with gradients that are reduced one by one; return the weights.

    op : None where every rank trains alone
    passes : batches whose gradients are averaged before
    momenta : the optimizer's from some batches on
    """
    inputs, targets = data_of_rank()
    model.build((None, FEATURES))
    sums = [0.0] * len(model.trainable_variables)
    for batch in range(BATCHES):
        if momenta and batch in momenta:
            optimizer.momentum = momenta[batch]
        part = slice(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs[part]) - targets[part]))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        sums = [one + gradient / passes for one, gradient in zip(sums, gradients)]
        if (batch + 1) % passes == 0:
            if op is not None and process_set.included():
                sums = [
                    hvd.allreduce(each, op=op, name=f"{name}.{i}", process_set=process_set)
                    for i, each in enumerate(sums)
                ]
            optimizer.apply(sums, model.trainable_variables)
            sums = [0.0] * len(sums)
    return weights_of(model)


def momentum(**options: Any) -> Any:
    return keras.optimizers.SGD(RATE, momentum=0.9, **options)


def beside_average_by_hand(
    name: str,
    *,
    process_set: Any,
    make: Make = momentum,
    make_by_hand: Make | None = None,
    is_dense: bool = False,
    op: Any = hvd.Average,
    given: str = "unbuilt_model",
    grouping: str = "single",
    passes: int = 1,
    execution: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """How far ``fit`` at density 1.0 ends from gradients that are averaged by hand, and that from
    what every rank trains alone."""
    make_by_hand = make_by_hand or make
    model = make_model() if given == "unbuilt_model" and grouping != "lists" else make_built_model()
    compressor = Compression.topk(
        params_of(model, given), density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    compression = hvd.Compression.none if is_dense else compressor
    groups = setting_of_groups(model, grouping)
    distributed = DistributedOptimizer(
        make(), compression=compression, op=op, groups=groups, process_set=process_set, **options
    )
    fit(model, distributed, **(execution or {}))
    stats = compressor.stats()
    compressor.close()
    hand = [
        train_by_hand(make_model(), make_by_hand(), name, how, process_set, passes)
        for how in (op, None)
    ]
    return {
        "is_reduced": process_set.included(),
        "difference": float(np.abs(weights_of(model) - hand[0]).max()),
        "effect": float(np.abs(hand[1] - hand[0]).max()),
        "sparse_steps": stats["sparse_steps"],
        "expected_steps": 0 if is_dense else BATCHES // passes * len(model.trainable_variables),
        "weights": weights_of(model).tolist(),
    }
