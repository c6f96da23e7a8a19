"""Worker of an elastic run.  Arguments: how many workers to kill, and a folder to note it in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from _elastic import SHAPES, Killer, empty_books, flat
from _tensorflow_cases import begin, hvd
from _tensorflow_elastic import compressor_of, train_with
from harness import report

from hvd_sparse.tensorflow.elastic import TensorFlowKerasState


class Model(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tall = (
            tf.Variable(tf.zeros(shape), name=key) for key, shape in SHAPES.items()
        )
        self.built = True


def main() -> None:
    begin(2)
    model = Model()
    variables = [model.wide, model.tall]
    optimizer = tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)
    optimizer.apply_gradients(
        (tf.zeros(v.shape), v) for v in variables
    )  # makes its slots, which are synchronized
    compressor = compressor_of(variables)

    @tf.function
    def step(*gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * g) for v, g in zip(variables, gradients))
        reduced = hvd.DistributedGradientTape(tape, compression=compressor).gradient(
            loss, variables
        )
        optimizer.apply_gradients(zip(reduced, variables))
        return reduced

    def take_step(gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        return flat(step(*(tf.constant(array) for array in gradients.values())))

    state = TensorFlowKerasState(
        model, optimizer, compressor=compressor, books=empty_books(), step=0
    )
    killer = Killer(sys.argv[2], int(sys.argv[1]))
    report(hvd.rank(), train_with(state, killer, take_step, lambda: variables))


if __name__ == "__main__":
    main()
