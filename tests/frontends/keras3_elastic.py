"""Worker of an elastic run with Keras 3.  Arguments: how many workers to kill, and a folder to note
it in."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "0"  # before TensorFlow is imported

import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _elastic import SHAPES, Killer, empty_books, flat
from _tensorflow_cases import begin, hvd
from _tensorflow_elastic import compressor_of, shape_of, train_with
from harness import report

from hvd_sparse.keras import DistributedOptimizer
from hvd_sparse.keras.elastic import KerasState


class Model(keras.Model):
    """Its weights' gradients are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        for key, shape in SHAPES.items():
            setattr(self, key, self.add_weight(shape=shape, initializer="zeros", name=key))
        self.built = True

    def call(self, inputs: dict[str, Any]) -> Any:
        products = [tf.reduce_sum(getattr(self, key) * inputs[key][0]) for key in SHAPES]
        return tf.reshape(sum(products), [1, 1])


class Noting(keras.optimizers.SGD):
    """Notes what it is given to apply."""

    def __init__(self, **options: Any) -> None:
        super().__init__(0.01, momentum=0.9, **options)
        self.given = {key: tf.Variable(tf.zeros(shape)) for key, shape in SHAPES.items()}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.given[shape_of(variable.name)].assign(gradient)
        super().update_step(gradient, variable, learning_rate)


def main() -> None:
    begin(2)
    model, optimizer = Model(), Noting()
    compressor = compressor_of(model)
    model.compile(
        DistributedOptimizer(optimizer, compression=compressor), lambda _, loss: tf.reduce_sum(loss)
    )

    def take_step(gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        inputs = {key: array[None] for key, array in gradients.items()}
        model.fit(inputs, np.zeros(1), verbose=0)
        return flat(optimizer.given[key] for key in SHAPES)

    def replica() -> Any:
        """Weights, momenta and the count of steps."""
        return [np.asarray(each) for each in [*model.weights, *optimizer.variables]]

    state = KerasState(model, compressor=compressor, books=empty_books(), step=0)
    killer = Killer(sys.argv[2], int(sys.argv[1]))
    found = train_with(state, killer, take_step, replica)
    report(hvd.rank(), {**found, "iterations": int(optimizer.iterations.numpy())})


if __name__ == "__main__":
    main()
