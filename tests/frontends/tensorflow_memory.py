"""Worker: the memory of TensorFlow's compressor, in graph mode."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import tensorflow as tf
from _common import run_cases
from _memory import CASES, SHAPE, build, measure, resident_bytes
from _tensorflow_cases import Compression, begin, end, hvd, meet


def train(
    name: str, selector: str, options: dict[str, Any], shape: tuple[int, int] = SHAPE
) -> dict[str, float]:
    gc.collect()
    variable, gradient = tf.Variable(tf.ones(shape)), tf.Variable(tf.ones(shape))

    @tf.custom_gradient
    def loss(_: tf.Tensor) -> Any:
        """Its gradient is a given variable's own memory."""
        return tf.zeros([]), lambda upstream: gradient.value()

    base = resident_bytes()
    compressor = build(Compression, [variable], selector, options, name)

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


def main() -> None:
    begin(2)
    # What Horovod and the framework take at first is nobody's fault: the first case is not looked
    # at.
    cases: dict[str, Any] = {
        "warm_up": partial(train, selector="topk", options={}, shape=(64, 128))
    }
    for case, (selector, options) in CASES.items():
        cases[case] = partial(train, selector=selector, options=options)
    run_cases(cases, hvd.rank(), meet)
    end()


if __name__ == "__main__":
    main()
