"""Worker of an elastic run.  Arguments: how many workers to kill, and a folder to note it in."""

from __future__ import annotations

import sys
import time
from typing import Any

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
from _tensorflow_cases import Compression, begin, digest_of, hvd
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
    killer = Killer(sys.argv[2], int(sys.argv[1]))
    model = Model()
    variables = [model.wide, model.tall]
    optimizer = tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)
    optimizer.apply_gradients(
        (tf.zeros(v.shape), v) for v in variables
    )  # makes its slots, which are synchronized
    compressor = Compression.topk(
        variables, density=DENSITY, name="elastic", **{**SPARSE_ONLY, "timeout_s": 60.0}
    )

    @tf.function
    def step(*gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(v * g) for v, g in zip(variables, gradients))
        reduced = hvd.DistributedGradientTape(tape, compression=compressor).gradient(
            loss, variables
        )
        optimizer.apply_gradients(zip(reduced, variables))
        return reduced

    def kept() -> np.ndarray:
        """By the names of the shapes: Keras adds ":0"."""
        tensors = compressor.state_dict()["tensors"]
        return residual_of(
            {key.split(":")[0]: tensor["arrays"]["residual"] for key, tensor in tensors.items()}
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
            reduced = step(*(tf.constant(array) for array in gradients.values()))
            given = hvd.allreduce(tf.constant(flat(gradients.values())), name="given").numpy()
            state.books = note_step(state.books, given, flat(reduced), residuals())
            digests = hvd.allgather_object(digest_of(variables), name="digests")
            assert len(set(digests)) == 1, f"replicas differ at step {state.step}"
            state.step += 1
            time.sleep(0.05)
            state.commit()

    state = TensorFlowKerasState(
        model, optimizer, compressor=compressor, books=empty_books(), step=0
    )
    train(state)
    report(
        hvd.rank(), {**conclude(state.books), "steps": state.step, "weights": digest_of(variables)}
    )


if __name__ == "__main__":
    main()
