"""One rank in TensorFlow: whole steps of every method in turn.  Started by ``benchmarks.network
--frontend tensorflow``."""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.architectures import ARCHITECTURES, parameters
from benchmarks.network.gradients import fill, pool
from benchmarks.network.specs import split
from hvd_sparse.density_text import density_argument
from hvd_sparse.tensorflow import Compression

WIDTH = 512
"""Of the matrices whose products stand for the computing of a step."""
LONGEST_TRIAL = 100
"""Steps, of a method that tries several ways."""


class ReplayedTape(tf.GradientTape):
    """A tape whose gradients are given, not computed."""

    def gradient(self, target: Any, sources: Any, *_: Any, **__: Any) -> Any:
        """The pieces of ``target``, a vector of all gradients, by the shapes of the sources."""
        pieces = tf.split(target, [source.shape.num_elements() for source in sources])
        return [tf.reshape(piece, source.shape) for piece, source in zip(pieces, sources)]


@tf.function
def worked(products: tf.Tensor) -> tf.Tensor:
    """A one, when so many products have been computed."""
    matrix = tf.eye(WIDTH)
    for _ in tf.range(products):
        matrix = tf.matmul(matrix, tf.eye(WIDTH))
    return matrix[0, 0]


def products_of(seconds: float) -> int:
    """Return the number of products that take so long here, alone."""
    worked(tf.constant(10))
    start = time.perf_counter()
    worked(tf.constant(100)).numpy()
    return round(seconds / ((time.perf_counter() - start) / 100))


class Method:
    """A ``compression=`` of Horovod's tape, in one traced function.

    products : of matrices, before there is any gradient
    """

    def __init__(
        self, spec: str, variables: list[tf.Variable], density: float, products: int
    ) -> None:
        self.compression = _compression(spec, variables, density)

        @tf.function
        def step(gradients: tf.Tensor) -> tf.Tensor:
            with ReplayedTape() as tape:
                pass
            if products:
                gradients = gradients * worked(tf.constant(products))
            tape = hvd.DistributedGradientTape(tape, compression=self.compression)
            averaged = tape.gradient(gradients, variables)
            return tf.stack([tf.reshape(each, [-1])[0] for each in averaged])

        self._step = step

    def step(self, gradients: tf.Tensor) -> np.ndarray:
        """The first entry of every averaged gradient [tensors]: all of them are there."""
        return np.asarray(self._step(gradients).numpy())

    @property
    def verdict(self) -> Any:
        """Return the decision of a method that tries several; None while it tries."""
        return getattr(self.compression, "verdict", "")


def _compression(spec: str, variables: list[tf.Variable], density: float) -> Any:
    if spec in ("dense", "fp16"):
        return hvd.Compression.none if spec == "dense" else hvd.Compression.fp16
    id, options = split(spec)
    name = re.sub(r"[^A-Za-z0-9]+", "_", spec)
    return getattr(Compression, id)(variables, name=name, **{"density": density, **options})


class Rank:
    """The variables, their gradients, and the methods that share them."""

    def __init__(self, options: argparse.Namespace) -> None:
        listed = parameters(options.model)
        variables = [
            tf.Variable(tf.zeros(each.shape), name=each.name.replace(".", "_")) for each in listed
        ]
        products = products_of(options.backward_ms / 1e3) if options.compute == "busy" else 0
        products = int(
            hvd.broadcast(tf.constant(products), 0, name="bench.products")
        )  # the same on all ranks
        self.methods = {
            spec: Method(spec, variables, options.density, products) for spec in options.methods
        }
        numel = sum(each.numel for each in listed)
        self._work, self._source = np.empty(numel, np.float32), pool(hvd.rank())
        self._steps = 0

    def step(self, spec: str) -> float:
        """Seconds, on the slowest rank."""
        self._steps += 1
        fill(self._work, self._source, self._steps)
        gradients = tf.constant(self._work)
        hvd.allreduce(tf.zeros(1), name="bench.begin")
        began = time.perf_counter()
        first = self.methods[spec].step(gradients)
        total = time.perf_counter() - began
        told = np.array([total, float(first.astype(np.float64).sum())])
        by_rank = hvd.allgather(tf.constant(told[None]), name="bench.merge").numpy()
        if len(set(by_rank[:, 1].tolist())) != 1:
            raise AssertionError(
                f"{spec}: the averaged gradients differ between ranks: {by_rank[:, 1].tolist()}"
            )
        return float(by_rank[:, 0].max())


def measure(rank: Rank, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Warm up, then rounds in which every method has its turn, each round in another order."""
    specs, rows = list(rank.methods), []
    for spec in specs:
        for number in range(max(options.warmup, LONGEST_TRIAL)):
            rank.step(spec)
            if rank.methods[spec].verdict is not None and number + 1 >= options.warmup:
                break
    for round_number in range(options.rounds):
        for spec in random.Random(round_number).sample(
            specs, len(specs)
        ):  # in the same order on all ranks
            seconds = [rank.step(spec) for _ in range(options.steps)]
            rows += [{"method": spec, "round": round_number, "total": total} for total in seconds]
    return sorted(rows, key=lambda row: (row["round"], specs.index(row["method"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=ARCHITECTURES)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--density", type=density_argument)
    parser.add_argument("--compute", choices=("none", "busy"))
    parser.add_argument("--backward-ms", type=float)
    for name in ("rounds", "steps", "warmup"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    hvd.init()
    rank = Rank(options)
    rows = measure(rank, options)
    if hvd.rank() == 0:
        verdicts = {
            spec: str(method.verdict) for spec, method in rank.methods.items() if method.verdict
        }
        options.output.write_text(
            json.dumps({"rows": rows, "verdicts": verdicts}), encoding="utf-8"
        )
    hvd.allreduce(tf.zeros(1), name="bench.end")


if __name__ == "__main__":
    main()
