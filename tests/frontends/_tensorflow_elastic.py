"""The elastic training that the workers with Keras 2 and with Keras 3 share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _elastic import (
    DENSITY,
    WORKER,
    Killer,
    conclude,
    flat,
    gradients_of,
    note_reset,
    note_step,
    residual_of,
)
from _tensorflow_cases import Compression, digest_of, hvd


def shape_of(name: str) -> str:
    """Return the shape's name in a variable's, to which Keras adds the model's and ":0"."""
    return name.split("/")[-1].split(":")[0]


def compressor_of(params: Any) -> Any:
    options = {**SPARSE_ONLY, "timeout_s": 60.0}
    return Compression.topk(params, density=DENSITY, name="elastic", **options)


def train_with(
    state: Any,
    killer: Killer,
    take_step: Callable[[Mapping[str, np.ndarray]], np.ndarray],
    replica: Callable[[], Any],
) -> dict[str, Any]:
    """Train until all kills are over, with the books in the elastic state; return them.

    take_step : gradients in, and what was applied out
    replica : arrays that all ranks have alike
    """

    def residuals() -> list[Any]:
        tensors = state.compressor.state_dict()["tensors"]
        kept = {shape_of(key): tensor["arrays"]["residual"] for key, tensor in tensors.items()}
        return hvd.allgather_object((WORKER, residual_of(kept)), name="residuals")

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.books = note_reset(state.books, residuals())
        state.save()  # a worker may die before the first commit, with what it was just given
        while not killer.is_over(
            done := int(hvd.broadcast(killer.done, 0, name="done")), hvd.size()
        ):
            gradients = gradients_of(hvd.rank(), state.step)
            killer.visit(done, hvd.rank(), hvd.size(), state.step)
            applied = take_step(gradients)
            given = hvd.allreduce(tf.constant(flat(gradients.values())), name="given").numpy()
            state.books = note_step(state.books, given, applied, residuals())
            digests = hvd.allgather_object(digest_of(replica()), name="digests")
            assert len(set(digests)) == 1, f"replicas differ at step {state.step}"
            state.step += 1
            time.sleep(0.05)
            state.commit()

    train(state)
    return {**conclude(state.books), "steps": state.step, "weights": digest_of(replica())}
