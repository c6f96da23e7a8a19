"""Worker: the memory of TensorFlow's compressor, in graph mode."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from _common import Cases, run_cases
from _memory import OPTIONS, SHAPE, measure, resident_bytes
from _tensorflow_cases import Compression, begin, end, hvd, meet

cases = Cases()


def train(name: str, method: str, rollback: bool, shape: tuple[int, int] = SHAPE) -> dict[str, float]:
    variable, gradient = tf.Variable(tf.ones(shape)), tf.Variable(tf.ones(shape))

    @tf.custom_gradient
    def loss(_: tf.Tensor) -> Any:
        """Its gradient is a given variable's own memory."""
        return tf.zeros([]), lambda upstream: gradient.value()

    base = resident_bytes()
    compressor = getattr(Compression, method)([variable], rollback=rollback, name=name, **OPTIONS)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(variable.value())
        distributed = hvd.DistributedGradientTape(tape, compression=compressor)
        return distributed.gradient(value, [variable])[0][0, 0]

    measured = measure(lambda: gradient.assign(tf.random.normal(shape)), step, base)
    assert compressor.stats()["sparse_steps"] > 0
    compressor.close()
    return measured


@cases
def warm_up(name: str) -> dict[str, float]:
    """What Horovod and the framework take at first is nobody's fault."""
    return train(name, "topk", rollback=False, shape=(64, 128))


@cases
def topk_without_rollback(name: str) -> dict[str, float]:
    return train(name, "topk", rollback=False)


@cases
def topk_with_rollback(name: str) -> dict[str, float]:
    return train(name, "topk", rollback=True)


@cases
def ldte_bs_without_rollback(name: str) -> dict[str, float]:
    return train(name, "ldte_bs", rollback=False)


def main() -> None:
    begin(2)
    run_cases(cases, hvd.rank(), meet)
    end()


if __name__ == "__main__":
    main()
