"""Run on every host of a cluster: train on the digits through every registered exchange, and check
what came of it.

    scripts/launch -H ... -- python exchanges.py --framework torch|tensorflow

Every exchange must bring the loss down to less than half, and leave the very same weights on all
ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import hvd_sparse.exchanges
from hvd_sparse.registry import EXCHANGES

STEPS, BATCH, RATE = 40, 32, 0.4
OPTIONS: dict[str, dict[str, Any]] = {}
"""What an exchange needs beside itself; by default exact top-k at density 0.05."""

COMMON: dict[str, Any] = {
    "selector": {"id": "topk", "density": 0.05},
    "allow_dense": False,
    "min_numel": 256,
}


def batches(rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    images = (digits.data / 16.0).astype(np.float32)[rank::size]
    return images, digits.target.astype(np.int64)[rank::size]


class Torch:
    def __init__(self, options: dict[str, Any]) -> None:
        import horovod.torch as hvd
        import torch

        from hvd_sparse.torch import Compression

        self.torch = torch
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        named = list(self.model.named_parameters())
        self.compression = Compression.build(named, **options)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=self.compression
        )

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        self.optimizer.zero_grad()
        logits = self.model(self.torch.from_numpy(images))
        loss = self.torch.nn.functional.cross_entropy(logits, self.torch.from_numpy(labels))
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def weights(self) -> bytes:
        return b"".join(
            parameter.detach().numpy().tobytes() for parameter in self.model.parameters()
        )


class TensorFlow:
    def __init__(self, options: dict[str, Any]) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        from hvd_sparse.tensorflow import Compression

        self.tf, self.hvd = tf, hvd
        tf.random.set_seed(1)
        layers = [tf.keras.layers.Dense(128, "relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
        self.model = tf.keras.Sequential(layers)
        hvd.broadcast_variables(self.model.variables, root_rank=0)
        self.compression = Compression.build(self.model.trainable_variables, **options)
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.train = tf.function(self._train)

    def _train(self, images: Any, labels: Any) -> Any:
        with self.tf.GradientTape() as tape:
            loss = self.loss(labels, self.model(images))
        tape = self.hvd.DistributedGradientTape(tape, compression=self.compression)
        variables = self.model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(RATE * gradient)
        return loss

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        return float(self.train(self.tf.constant(images), self.tf.constant(labels)))

    def weights(self) -> bytes:
        return b"".join(variable.numpy().tobytes() for variable in self.model.trainable_variables)


def train(hvd: Any, framework: type, id: str) -> str:
    options = {**COMMON, "exchange": id, "name": f"docker.{id}", **OPTIONS.get(id, {})}
    training = framework(options)
    images, labels = batches(hvd.rank(), hvd.size())
    rng = np.random.default_rng(hvd.rank())
    losses = []
    for _ in range(STEPS):
        chosen = rng.integers(0, len(labels), BATCH)
        losses.append(training.step(images[chosen], labels[chosen]))
    digests = hvd.allgather_object(
        hashlib.sha256(training.weights()).hexdigest(), name=f"digest.{id}"
    )
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    assert len(set(digests)) == 1, f"exchange {id}: the ranks' weights differ: {digests}"
    assert last < first / 2, f"exchange {id}: the loss went from {first:.3f} to {last:.3f} only"
    stats = training.compression.stats()
    assert stats["steps"] == STEPS and stats["dense_steps"] == 0, f"exchange {id}: {stats}"
    training.compression.close()
    return f"exchange {id}: loss {first:.3f} to {last:.3f} on {hvd.size()} ranks, all alike"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("torch", "tensorflow"), required=True)
    framework = {"torch": Torch, "tensorflow": TensorFlow}[parser.parse_args().framework]
    hvd = importlib.import_module(f"horovod.{parser.parse_args().framework}")
    hvd.init()
    assert hvd_sparse.exchanges and EXCHANGES.ids(), "no exchange is registered"
    for id in EXCHANGES.ids():
        said = train(hvd, framework, id)
        if hvd.rank() == 0:
            print(said, flush=True)
    hvd.allgather_object(0, name="end")
    print(f"rank {hvd.rank()} is done", flush=True)


if __name__ == "__main__":
    main()
