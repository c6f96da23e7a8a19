"""One rank in TensorFlow: records what the graph's Python functions call, after the first steps.

TensorFlow calls these functions from its own threads, in which a profile function cannot be set in
advance. So each function that ``tf.numpy_function`` gets is wrapped while the graph is traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import tensorflow as tf

import hvd_sparse
from benchmarks._ranks import report
from benchmarks.journey.recorder import Call, recording
from benchmarks.journey.ways import OPTIONS, RECORDED, WARM, WIDTH, described
from hvd_sparse.tensorflow import Compression

PACKAGE = Path(hvd_sparse.__file__).parent


class Watched:
    """Wraps the Python functions of a graph, and records their calls while ``is_recording``."""

    def __init__(self) -> None:
        self.is_recording = False
        self.ways: dict[str, list[list[Call]]] = {}
        """Recorded calls by function name, with a number if several operations have this name."""
        self._wrapped: Counter[str] = Counter()

    @contextmanager
    def wrapping(self) -> Iterator[None]:
        """While the block runs, wrap every function that ``tf.numpy_function`` gets."""
        original = tf.numpy_function

        def numpy_function(func: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            return original(self._watch(func), *arguments, **options)

        with mock.patch.object(tf, "numpy_function", numpy_function):
            yield

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        bound = function.func if isinstance(function, partial) else function
        name = bound.__name__
        self._wrapped[name] += 1
        if self._wrapped[name] > 1:
            name += f" {self._wrapped[name]}"

        def watched(*arguments: Any) -> Any:
            if not self.is_recording:
                return function(*arguments)
            with recording(PACKAGE) as way:
                result = function(*arguments)
            self.ways.setdefault(name, []).append(way)
            return result

        return watched


def follow(name: str, variables: list[tf.Variable]) -> dict[str, dict[str, Any]]:
    """Make steps with Horovod's tape; return the calls of a typical step by function name."""
    watched = Watched()
    compression = Compression.ldte_bs(variables, name=name, **OPTIONS)

    @tf.function
    def step(inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = inputs
            for variable in variables:
                is_matrix = variable.shape.rank == 2
                outputs = outputs @ variable if is_matrix else outputs + variable
            loss = tf.reduce_sum(outputs**2)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(1e-5 * gradient)
        return loss

    rng = tf.random.Generator.from_seed(hvd.rank() + 1)
    with watched.wrapping():
        for number in range(WARM + RECORDED):
            watched.is_recording = number >= WARM
            step(rng.normal([8, WIDTH])).numpy()
    compression.close()
    if not watched.ways:
        raise AssertionError("the graph was given no function by tf.numpy_function")
    return {each: described(ways) for each, ways in watched.ways.items()}


def main() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    matrix = tf.Variable(
        tf.random.normal([WIDTH, WIDTH], stddev=WIDTH**-0.5, seed=7), name="matrix"
    )
    found = follow("alone", [matrix])
    report(hvd.rank(), found)
    hvd.allreduce(tf.zeros(1), name="journey.end")


if __name__ == "__main__":
    main()
