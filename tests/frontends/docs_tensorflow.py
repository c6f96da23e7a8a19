"""Worker: runs the documentation's blocks for TensorFlow and Keras, and fits two steps with what
they make."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import run_cases
from _tensorflow_cases import begin, digest_of, end, hvd, meet
from blocks import blocks_for
from horovod.tensorflow.keras import DistributedOptimizer

from hvd_sparse.frontend.compression import SendNothing
from hvd_sparse.tensorflow import Compression

keras = tf.keras


def prelude() -> dict[str, Any]:
    """Return what every block finds: a model, its optimizer, data, as a program has them."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(32)])
    model.build((None, 32))
    data = np.random.RandomState(hvd.rank()).standard_normal((16, 32)).astype("f4")
    return {
        "tf": tf,
        "Compression": Compression,
        "model": model,
        "optimizer": keras.optimizers.SGD(0.01, momentum=0.9),
        "loss_function": keras.losses.MeanSquaredError(),
        "inputs": data,
        "targets": data,
        "dataset": tf.data.Dataset.from_tensor_slices((data, data)).batch(8),
        "epochs": 1,
        "total_steps": 4,
    }


def train(names: dict[str, Any], own: Any) -> dict[str, Any]:
    """Fit two steps with a block's optimizer, if it is Horovod's by then.

    A block that does not import Horovod shows a compressor alone; it gets Horovod's optimizer here.
    """
    model, optimizer = names["model"], names["optimizer"]
    if "hvd" not in names and "compression" in names:
        optimizer = DistributedOptimizer(optimizer, compression=names["compression"])
    if optimizer is own or names.get("tape") is not None:
        return {"is_trained": False}
    model.compile(optimizer, "mse")
    model.fit(names["inputs"], names["targets"], batch_size=8, epochs=1, shuffle=False, verbose=0)
    compression = names.get("compression", names.get("compressor"))
    report = compression.stats() if hasattr(compression, "stats") else {}
    return {
        "is_trained": True,
        "digest": digest_of(model.get_weights()),
        "sparse_steps": report.get("sparse_steps"),
        "is_apart": isinstance(compression, SendNothing),
    }


def run(block: Any, names: dict[str, Any], _: str) -> dict[str, Any]:
    """Run a block in its names, and fit."""
    if not block.goes_on:
        names.clear()
        names.update(prelude())
    own = names["optimizer"]
    exec(compile(block.text, block.name, "exec"), names)
    return train(names, own)


if __name__ == "__main__":
    begin(2)
    shared: dict[str, Any] = {}
    blocks = blocks_for("tensorflow")
    run_cases({block.name: partial(run, block, shared) for block in blocks}, hvd.rank(), meet)
    end()
