"""Worker: Keras optimizers that are handed over to the compressor, beside the same optimizers on
dense gradients."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, run_cases
from _tensorflow_cases import Compression, begin, end, hvd, meet
from _tensorflow_keras import data_of_rank, fit, make_built_model, weights_of
from horovod.tensorflow.keras import DistributedOptimizer

keras = tf.keras
cases = Cases()
WITHOUT_MASK = {"id": "momentum_correction", "masking": False}
Make = Callable[[], Any]


def falling(rate: float) -> Any:
    """A schedule that changes the rate at every step, and is 0 for some."""
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [1, 2, 4], [rate, rate / 4, 0.0, rate / 2]
    )


def beside_dense(name: str, *, make: Make, by_tape: bool = False, **options: Any) -> dict[str, Any]:
    """How far training with the compressor ends from training with the optimizer itself and dense
    gradients."""
    start, dense, ours = make_built_model(), make_built_model(), make_built_model()
    handed = make()
    compressor = Compression.topk(
        ours.trainable_variables, density=1.0, name=name, optimizer=handed, **options
    )
    for model, optimizer, compression in (
        (dense, make(), hvd.Compression.none),
        (ours, handed, compressor),
    ):
        if by_tape:
            train_by_tape(model, optimizer, compression)
        else:
            fit(model, DistributedOptimizer(optimizer, compression=compression))
    stats = compressor.stats()
    compressor.close()
    moved = np.abs(weights_of(dense) - weights_of(start)).max()
    return {
        "difference": float(np.abs(weights_of(dense) - weights_of(ours)).max() / moved),
        "weights": weights_of(ours).tolist(),
        "sparse_steps": stats["sparse_steps"],
    }


def train_by_tape(model: Any, optimizer: Any, compression: Any) -> None:
    inputs, targets = data_of_rank()

    @tf.function
    def step(batch: Any, wanted: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch) - wanted))
        distributed = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = distributed.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for first in range(0, len(inputs), 2):
        step(inputs[first : first + 2], targets[first : first + 2])


sgd = partial(keras.optimizers.SGD, momentum=0.9)
adam, adamw = keras.optimizers.Adam, partial(keras.optimizers.AdamW, weight_decay=0.1)
cases["sgd"] = partial(beside_dense, make=lambda: sgd(0.05), memory=WITHOUT_MASK, **SPARSE_ONLY)
cases["sgd_by_tape"] = partial(
    beside_dense, make=lambda: sgd(0.05), by_tape=True, memory=WITHOUT_MASK, **SPARSE_ONLY
)
cases["nesterov_never_compressed"] = partial(
    beside_dense, make=lambda: sgd(0.05, nesterov=True), min_numel=10**6
)
cases["adam_never_compressed"] = partial(
    beside_dense, make=lambda: adam(falling(0.01)), min_numel=10**6
)
cases["adamw_never_compressed"] = partial(beside_dense, make=lambda: adamw(0.01), min_numel=10**6)
cases["adam_by_tape_never_compressed"] = partial(
    beside_dense, make=lambda: adam(0.01), by_tape=True, min_numel=10**6
)


def trained(name: str, *, make: Make) -> dict[str, Any]:
    """Losses of a fit that learns, at a density that sends few entries, under a schedule; and what
    the replicas end with."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(4)])
    model.build((None, 12))
    optimizer = make()
    compressor = Compression.ldte_bs(
        model.trainable_variables,
        density=0.05,
        name=name,
        min_numel=20,
        allow_dense=False,
        optimizer=optimizer,
    )
    distributed = DistributedOptimizer(optimizer, compression=compressor)
    inputs = np.random.RandomState(hvd.rank()).standard_normal((160, 12)).astype("f4")
    model.compile(distributed, "mse")
    told = model.fit(
        inputs, inputs[:, 4:8], batch_size=16, epochs=8, shuffle=False, verbose=0
    ).history["loss"]
    stats, kept = compressor.stats(), sorted(compressor.state_dict()["tensors"])
    arrays = sorted(compressor.state_dict()["tensors"][kept[1]]["arrays"])
    compressor.close()
    return {
        "losses": [told[0], told[-1]],
        "weights": weights_of(model).tolist(),
        "density": stats["density_achieved"],
        "slots": len(distributed.variables()),
        "arrays": arrays,
    }


cases["sgd_trains"] = partial(trained, make=lambda: sgd(falling(0.05)))
cases["adam_trains"] = partial(trained, make=lambda: adam(0.01))


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@cases
def warnings_of_accuracy(name: str) -> dict[str, list[str]]:
    makers: dict[str, Make] = {
        "momentum": lambda: sgd(0.05),
        "plain": lambda: keras.optimizers.SGD(0.05),
        "adam": adam,
        "legacy adam": keras.optimizers.legacy.Adam,
        "rmsprop": keras.optimizers.RMSprop,
    }
    said = {}
    for kind, make in makers.items():
        for hands_over in (False, True):
            heard, model, optimizer = Heard(), make_built_model(), make()
            logging.getLogger("hvd_sparse").addHandler(heard)
            options = {"optimizer": optimizer} if hands_over else {}
            compressor = Compression.topk(
                model.trainable_variables, density=0.01, name=name, min_numel=10, **options
            )
            fit(model, DistributedOptimizer(optimizer, compression=compressor))
            compressor.close()
            logging.getLogger("hvd_sparse").removeHandler(heard)
            said[f"{kind}, {'handed over' if hands_over else 'kept'}"] = [
                t for t in heard.said if "accuracy" in t
            ]
    return said


@cases
def amsgrad_is_refused(name: str) -> str:
    try:
        Compression.topk(
            make_built_model(), density=0.1, name=name, optimizer=adam(0.01, amsgrad=True)
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "made"


if __name__ == "__main__":
    begin(2)
    run_cases(cases, hvd.rank(), meet)
    end()
