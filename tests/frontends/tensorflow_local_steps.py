"""Worker: TensorFlow's ranks that train by themselves and exchange every few steps."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, run_cases
from _tensorflow_cases import Compression, begin, digest_of, end, hvd, meet, summed

from hvd_sparse.errors import InvalidOption
from hvd_sparse.tensorflow import LocalSteps

SHAPES = ((24, 10), (10,))
cases = Cases()


class Training:
    """Variables, and steps of plain descent on batches that depend on rank and step alone."""

    def __init__(
        self, name: str, every: int, density: float, dtype: str = "float32", **outer: Any
    ) -> None:
        draw = np.random.RandomState(hvd.rank())
        self.variables = [
            tf.Variable(tf.cast(draw.normal(size=shape), dtype), name=f"{name}{i}")
            for i, shape in enumerate(SHAPES)
        ]
        made = partial(Compression.topk, density=density, name=name, **SPARSE_ONLY)
        self.local = LocalSteps(self.variables, compression=made, every=every, **outer)

    def descend(self, step: int) -> None:
        draw = np.random.RandomState(1000 * step + hvd.rank())
        inputs = draw.normal(size=(8, 24)).astype("f4")
        labels = tf.constant(draw.randint(10, size=len(inputs)))
        weights, biases = self.variables
        with tf.GradientTape() as tape:
            logits = tf.cast(inputs, weights.dtype) @ weights + biases
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables)):
            variable.assign_sub(tf.cast(0.1, gradient.dtype) * gradient)

    def flat(self) -> np.ndarray:
        return np.concatenate([v.numpy().reshape(-1).astype("f8") for v in self.variables])

    def digest(self) -> str:
        return digest_of([v.numpy() for v in self.variables])


@cases
def bfloat16_is_local_sgd(name: str) -> dict[str, Any]:
    """From rank 0's start, to the mean of what the ranks' own steps have made of it."""
    training = Training(name, 2, 1.0, dtype="bfloat16")
    digests, start = [training.digest()], training.flat()
    for step in range(2):
        training.descend(step)
        if step:
            mean = summed(training.flat(), f"{name}.{step}") / hvd.size()
        training.local.advance()
        digests.append(training.digest())
    training.local.compressor.close()
    moved = float(np.abs(training.flat() - start).max())
    furthest = np.abs(training.flat() - mean) / np.maximum(np.abs(mean), 0.01)
    return {"furthest": float(furthest.max()), "moved": moved, "digests": digests}


@cases
def a_layer_that_is_unfrozen_is_refused(name: str) -> dict[str, Any]:
    trained = [tf.Variable(tf.ones([3, 4]), name=f"{name}.0")]
    made = partial(Compression.topk, density=0.1, name=name, **SPARSE_ONLY)
    local = LocalSteps(lambda: trained, compression=made, every=2)
    local.advance()
    trained.append(tf.Variable(tf.ones([3, 4]), name=f"{name}.1"))
    words = ""
    try:
        local.advance()
    except InvalidOption as error:
        words = str(error)
    local.compressor.close()
    return {"words": words}


@cases
def the_outer_step_is_nesterovs(name: str) -> dict[str, Any]:
    """Everything sent, beside DiLoCo's outer step written out; from rank 0's start."""
    outer = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}
    training = Training(name, 2, 1.0, **outer)
    anchor, velocity, furthest, digests = training.flat(), 0.0, 0.0, []
    for step in range(8):
        training.descend(step)
        if step % 2:
            moved = anchor - summed(training.flat(), f"{name}.{step}") / hvd.size()
            velocity = 0.9 * velocity + moved
            anchor = anchor - 0.7 * (moved + 0.9 * velocity)
        training.local.advance()
        digests.append(training.digest())
        if step % 2:
            furthest = max(furthest, float(np.abs(training.flat() - anchor).max()))
    exchanges = training.local.stats()["steps"]
    training.local.compressor.close()
    return {"furthest": furthest, "digests": digests, "exchanges": exchanges}


@cases
def nothing_is_lost(name: str) -> dict[str, Any]:
    training = Training(name, 3, 0.1)
    start = anchor = training.flat()
    moved = np.zeros_like(start)
    for step in range(9):
        training.descend(step)
        if step % 3 == 2:
            moved = moved + summed(anchor - training.flat(), f"{name}.{step}")
        training.local.advance()
        if step % 3 == 2:
            anchor = training.flat()
    tensors = training.local.compressor.state_dict()["tensors"]
    keys = [v.name.partition(":")[0] for v in training.variables]
    found = {key.partition(":")[0]: each["arrays"]["residual"] for key, each in tensors.items()}
    kept = summed(np.concatenate([found[key] for key in keys]), f"{name}.kept")
    lost = moved - hvd.size() * (start - anchor) - kept
    training.local.compressor.close()
    return {
        "lost": float(np.abs(lost).max()),
        "kept": float(np.abs(kept).max()),
        "digest": training.digest(),
    }


@cases
def a_checkpoint_in_the_middle_goes_on(name: str) -> dict[str, Any]:
    outer = {"outer_lr": 0.7, "outer_momentum": 0.9}
    whole = Training(f"{name}.whole", 4, 0.1, **outer)
    for step in range(6):
        whole.descend(step)
        whole.local.advance()
    saved, weights = whole.local.state_dict(), [v.numpy() for v in whole.variables]
    half = Training(f"{name}.half", 4, 0.1, **outer)
    # Names are part of a state, and these two models live in one process.
    for part in ("model", "tensors"):
        theirs = saved["compressor"][part]
        saved["compressor"][part] = {
            key.replace("whole", "half"): value for key, value in theirs.items()
        }
    for tensor in saved["compressor"]["tensors"].values():
        tensor["selected_in"] = tensor["selected_in"].replace("whole", "half")
    half.local.load_state_dict(saved)
    for variable, value in zip(half.variables, weights):
        variable.assign(value)
    for training in (whole, half):
        for step in range(6, 10):
            training.descend(step)
            training.local.advance()
        training.local.exchange()
        training.local.compressor.close()
    return {"whole": whole.digest(), "half": half.digest()}


@cases
def what_cannot_be_is_refused(name: str) -> list[str]:
    variables, words = [tf.Variable(tf.ones([3, 4]), name=name)], []
    topk = partial(Compression.topk, density=0.1)
    made = [
        lambda: LocalSteps(variables, compression="topk", every=2),
        lambda: LocalSteps(variables, compression=topk, every=0),
        tf.function(lambda: LocalSteps(variables, compression=topk, every=2) and None),
    ]
    for make in made:
        try:
            make()
        except InvalidOption as error:
            words.append(str(error))
    return words


if __name__ == "__main__":
    begin(int(sys.argv[1]))
    run_cases(cases, hvd.rank(), meet)
    end()
