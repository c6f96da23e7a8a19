"""Worker of an elastic run with Keras 3.  Arguments: how many workers to kill, and a folder to note
it in."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "0"  # before TensorFlow is imported

import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _elastic import (
    DENSITY,
    SHAPES,
    WORKER,
    Killer,
    conclude,
    empty_books,
    flat,
    gradients_of,
    note_reset,
    note_step,
    residual_of,
)
from _tensorflow_cases import begin, digest_of, hvd
from harness import report

from hvd_sparse.keras import Compression, DistributedOptimizer
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


def shape_of(name: str) -> str:
    """Return the shape's name in a variable's, to which Keras adds the model's and ":0"."""
    return name.split("/")[-1].split(":")[0]


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
    killer = Killer(sys.argv[2], int(sys.argv[1]))
    model, optimizer = Model(), Noting()
    compressor = Compression.topk(
        model, density=DENSITY, name="elastic", **{**SPARSE_ONLY, "timeout_s": 60.0}
    )
    model.compile(
        DistributedOptimizer(optimizer, compression=compressor), lambda _, loss: tf.reduce_sum(loss)
    )

    def kept() -> np.ndarray:
        tensors = compressor.state_dict()["tensors"]
        return residual_of(
            {shape_of(key): tensor["arrays"]["residual"] for key, tensor in tensors.items()}
        )

    def residuals() -> list[Any]:
        return hvd.allgather_object((WORKER, kept()), name="residuals")

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.books = note_reset(state.books, residuals())
        state.save()  # a worker may die before the first commit, with what it was just given
        while not killer.is_over(
            done := int(hvd.broadcast(killer.done, 0, name="done")), hvd.size()
        ):
            gradients = gradients_of(hvd.rank(), state.step)
            killer.visit(done, hvd.rank(), hvd.size(), state.step)
            model.fit(
                {key: array[None] for key, array in gradients.items()}, np.zeros(1), verbose=0
            )
            given = hvd.allreduce(tf.constant(flat(gradients.values())), name="given").numpy()
            applied = flat(optimizer.given[key] for key in SHAPES)
            state.books = note_step(state.books, given, applied, residuals())
            digests = hvd.allgather_object(replica(), name="digests")
            assert len(set(digests)) == 1, f"replicas differ at step {state.step}"
            state.step += 1
            time.sleep(0.05)
            state.commit()

    def replica() -> str:
        """Of weights, momenta and the count of steps."""
        return digest_of(np.asarray(each) for each in [*model.weights, *optimizer.variables])

    state = KerasState(model, compressor=compressor, books=empty_books(), step=0)
    train(state)
    report(
        hvd.rank(),
        {
            **conclude(state.books),
            "steps": state.step,
            "iterations": int(optimizer.iterations.numpy()),
            "weights": replica(),
        },
    )


if __name__ == "__main__":
    main()
