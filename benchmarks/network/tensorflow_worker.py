"""One rank under Horovod in TensorFlow, which makes steps of one method. ``benchmarks.network
--frontend tensorflow`` starts it."""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks._gradients import Gradients, fill
from benchmarks.architectures import parameters
from benchmarks.network.cluster import interface_bytes
from benchmarks.network.launching import POOL, rank_options
from examples.spelling import Spelled, SpelledMethod, read_method
from hvd_sparse.tensorflow import Compression

LONGEST_TRIAL = 100
"""Largest number of steps of the trial of ``auto``."""


class ReplayedTape(tf.GradientTape):
    """A tape that returns given gradients and computes nothing."""

    def gradient(self, target: Any, sources: Any, *_: Any, **__: Any) -> Any:
        pieces = tf.split(target, [source.shape.num_elements() for source in sources])
        return [tf.reshape(piece, source.shape) for piece, source in zip(pieces, sources)]


class Method:
    """A traced function that averages gradients by Horovod's tape with a ``compression=``."""

    def __init__(self, spec: str, variables: list[tf.Variable], density: Spelled) -> None:
        self.compression = _compression(spec, variables, density)

        @tf.function
        def step(gradients: tf.Tensor) -> tf.Tensor:
            with ReplayedTape() as tape:
                pass
            tape = hvd.DistributedGradientTape(tape, compression=self.compression)
            averaged = tape.gradient(gradients, variables)
            return tf.stack([tf.reshape(each, [-1])[0] for each in averaged])

        self._step = step

    def step(self, gradients: tf.Tensor) -> np.ndarray:
        return np.asarray(self._step(gradients).numpy())

    @property
    def verdict(self) -> Any:
        return getattr(self.compression, "verdict", "")


def _compression(spec: str, variables: list[tf.Variable], density: Spelled) -> Any:
    if spec in ("dense", "fp16"):
        return hvd.Compression.none if spec == "dense" else hvd.Compression.fp16
    method = SpelledMethod("auto") if spec == "auto" else read_method(spec)
    name = re.sub(r"[^A-Za-z0-9]+", "_", spec)
    return method.create(Compression, variables, name=name, density=density)


class Rank:
    def __init__(self, options: argparse.Namespace) -> None:
        listed = parameters(options.model)
        variables = [
            tf.Variable(tf.zeros(each.shape), name=each.name.replace(".", "_")) for each in listed
        ]
        self.method = Method(options.method, variables, options.density)
        self._work = np.empty(sum(each.numel for each in listed), np.float32)
        self._source, self._steps = Gradients.draw(POOL, seed=hvd.rank()).arrays[0], 0

    def step(self) -> dict[str, float]:
        self._steps += 1
        fill(self._work, self._source, self._steps)
        gradients = tf.constant(self._work)
        hvd.allreduce(tf.zeros(1), name="bench.begin")
        received, used = interface_bytes()[0], time.process_time()
        began = time.perf_counter()
        first = self.method.step(gradients)
        total, used = time.perf_counter() - began, time.process_time() - used
        own = [total, used, interface_bytes()[0] - received, float(first.astype(np.float64).sum())]
        by_rank = hvd.allgather(tf.constant(np.array([own])), name="bench.merge").numpy()
        if len(set(by_rank[:, 3].tolist())) != 1:
            raise AssertionError(f"the averaged gradients differ between ranks: {by_rank[:, 3]}")
        _, used, received, _ = by_rank.mean(axis=0).tolist()
        return {"total": float(by_rank[:, 0].max()), "all_threads": used, "received": received}


def measure(rank: Rank, options: argparse.Namespace) -> list[dict[str, float]]:
    """Make steps until the trial of ``auto`` is over, then return the measured steps."""
    for number in range(max(options.warmup, LONGEST_TRIAL)):
        rank.step()
        if rank.method.verdict is not None and number + 1 >= options.warmup:
            break
    return [rank.step() for _ in range(options.steps)]


def main() -> None:
    options = rank_options(__doc__)
    hvd.init()
    rank = Rank(options)
    rows, verdict = measure(rank, options), rank.method.verdict
    if hvd.rank() == 0:
        report = {"verdict": str(verdict)} if verdict else {}
        options.output.write_text(json.dumps({"rows": rows, "report": report}), encoding="utf-8")
    hvd.allreduce(tf.zeros(1), name="bench.end")


if __name__ == "__main__":
    main()
