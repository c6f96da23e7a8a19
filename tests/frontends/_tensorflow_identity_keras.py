"""Whose gradient is it?  Where Keras's optimizers and models could be taken for one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from _common import Cases
from _keras_models import BATCHES, fit, make_built_model, weights_of
from _tensorflow_cases import hvd, linear_loss, variables_of
from _tensorflow_identity import SHAPES, dense, sent, swapped, telling
from _tensorflow_keras import OPTIMIZERS
from horovod.tensorflow.keras import DistributedOptimizer

IDENTITY_IN_KERAS = Cases()


class CompareFits:
    """Models fitted at density 1.0, and without compression from the same start."""

    def __init__(self, tolerance: float = 1e-5) -> None:
        self._tolerance = tolerance
        self.wrong: list[str] = []
        self.sent: list[dict[str, Any]] = []

    def add(
        self, label: str, wrap: Callable[..., Any], params: Callable[[Any], Any], name: str
    ) -> None:
        """``wrap(model, compression)`` makes the optimizer, ``params(model)`` is what the
        compressor is given."""
        model, twin = make_built_model(), make_built_model()
        compressor = dense(params(model), name)
        fit(model, wrap(model, compressor))
        fit(twin, wrap(twin, hvd.Compression.none))
        self.wrong += (
            [label] if np.abs(weights_of(model) - weights_of(twin)).max() > self._tolerance else []
        )
        self.sent.append(sent(compressor))


@IDENTITY_IN_KERAS
def one_compressor_for_two_keras_models(name: str) -> dict[str, Any]:
    wrong, reports = [], []
    for kind, optimizer in OPTIMIZERS.items():
        models = [make_built_model(), make_built_model()]
        models[1].set_weights([2 * weight for weight in models[1].get_weights()])
        compressor = dense(
            lambda models=models: [v for m in models for v in m.trainable_variables],
            f"{name}.{kind}",
        )
        starts = [model.get_weights() for model in models]
        for model, start in zip(models, starts):
            fit(model, DistributedOptimizer(optimizer(0.05), compression=compressor))
            twin = make_built_model()
            twin.set_weights(start)
            fit(twin, DistributedOptimizer(optimizer(0.05)))
            wrong += [kind] if np.abs(weights_of(model) - weights_of(twin)).max() > 1e-5 else []
        reports.append(sent(compressor))
    return {"wrong": wrong, "sent": reports, "tensor_steps": 2 * BATCHES * 4}


@IDENTITY_IN_KERAS
def two_keras_optimizers_in_one_graph(name: str) -> dict[str, Any]:
    groups = [variables_of(SHAPES), variables_of(SHAPES)]
    compressor = dense(groups[0] + groups[1], name)
    optimizers = [
        DistributedOptimizer(OPTIMIZERS["new"](1.0), compression=compressor) for _ in groups
    ]
    for optimizer, variables in zip(optimizers, groups):
        optimizer.build(variables)

    @tf.function
    def step() -> None:
        for number, (optimizer, variables) in enumerate(zip(optimizers, groups)):
            with tf.GradientTape() as tape:
                value = linear_loss(variables, telling(variables, 1 + 10 * number))()
            optimizer.minimize(value, variables, tape=tape)

    for _ in range(3):
        step()
    moved = [[(1.0 - v) / 3 for v in variables] for variables in groups]
    wrong = swapped(moved[0]) + swapped(moved[1], 11)
    return {"wrong": wrong, "sent": [sent(compressor)], "tensor_steps": 6 * len(SHAPES)}


@IDENTITY_IN_KERAS
def keras_optimizer_with_a_local_layer(name: str) -> dict[str, Any]:
    compared = CompareFits()

    def wrap(model: Any, compression: Any) -> Any:
        optimizer = DistributedOptimizer(OPTIMIZERS["new"](0.05), compression=compression)
        for variable in model.layers[0].trainable_variables:
            optimizer.register_local_var(variable)
        return optimizer

    compared.add("weights", wrap, lambda model: model.layers[1].trainable_variables, name)
    return {"wrong": compared.wrong, "sent": compared.sent, "tensor_steps": BATCHES * 2}


@IDENTITY_IN_KERAS
def mixed_float16_policy(name: str) -> dict[str, Any]:
    """Weights may end some roundings of float16 apart: the scaled loss itself differs by one."""
    compared = CompareFits(tolerance=2e-3)
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for kind, optimizer in OPTIMIZERS.items():

            def wrap(model: Any, compression: Any, optimizer: Any = optimizer) -> Any:
                return DistributedOptimizer(optimizer(0.05), compression=compression)

            compared.add(kind, wrap, lambda model: model, f"{name}.{kind}")
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    return {"wrong": compared.wrong, "sent": compared.sent, "tensor_steps": BATCHES * 4}
