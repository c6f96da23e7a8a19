"""Law 3 through Keras ``fit``: the weights it ends with, against those that dense Horovod ends
with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _tensorflow_cases import Compression, hvd
from _tensorflow_settings import KerasSetting
from horovod.tensorflow.keras import DistributedOptimizer

keras = tf.keras
BATCHES, BATCH_SIZE, FEATURES = 8, 2, 6
RATE = 0.05
OPTIMIZERS = {"new": keras.optimizers.SGD, "legacy": keras.optimizers.legacy.SGD}


def make_model() -> Any:
    """Unbuilt; it will start the same on every rank and in every run.

    With hyperbolic tangents, as rectifiers make gradients with exact zeros.
    """
    return keras.Sequential([_dense(5, seed=1, activation="tanh"), _dense(3, seed=2)])


def _dense(units: int, seed: int, **options: Any) -> Any:
    start = keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)
    return keras.layers.Dense(units, kernel_initializer=start, **options)


def make_built_model() -> Any:
    """As ``make_model``, with its variables."""
    model = make_model()
    model.build((None, FEATURES))
    return model


def data_of_rank(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """This rank's own."""
    draw = np.random.RandomState(1000 * seed + hvd.rank())
    count = BATCHES * BATCH_SIZE
    return draw.standard_normal((count, FEATURES)).astype("f4"), draw.standard_normal(
        (count, 3)
    ).astype("f4")


def weights_of(model: Any) -> np.ndarray:
    """All weights as one float64 vector."""
    return np.concatenate(
        [np.asarray(weight, np.float64).ravel() for weight in model.get_weights()]
    )


def fit(model: Any, optimizer: Any, callbacks: Any = (), **options: Any) -> None:
    """Train for one epoch, on this rank's data."""
    model.compile(optimizer, "mse", **options)
    model.fit(
        *data_of_rank(),
        batch_size=BATCH_SIZE,
        epochs=1,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


@functools.cache
def weights_trained_alone() -> np.ndarray:
    """What plain descent on this rank's data gives, in any setting: what reducing must change."""
    model = make_model()
    fit(model, OPTIMIZERS["new"](RATE))
    return weights_of(model)


def compare_keras(name: str, setting: KerasSetting, process_sets: dict[str, Any]) -> dict[str, Any]:
    """Fit compressed at density 1.0, dense and alone, from the same start: how far apart the
    weights end."""
    process_set = process_sets[setting.place.members if hvd.size() > 2 else "all"]
    model = make_built_model() if setting.given == "list" else make_model()
    params = {
        "unbuilt_model": lambda: model,
        "callable": lambda: lambda: model.trainable_variables,
        "list": lambda: model.trainable_variables,
    }[setting.given]()
    compressor = getattr(Compression, setting.method)(
        params, density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    sparse = _fit_setting(model, setting, compressor, process_set)
    stats = compressor.stats()
    compressor.close()
    dense = _fit_setting(make_model(), setting, hvd.Compression.none, process_set)
    return {
        "is_reduced": process_set.included() and process_set.size() > 1,
        "difference": float(np.abs(sparse - dense).max()),
        "effect": float(np.abs(weights_trained_alone() - dense).max()),
        "numel": BATCHES // setting.passes * dense.size,
        "tensor_steps": BATCHES // setting.passes * len(model.trainable_variables),
        **{
            key: stats[key]
            for key in ("steps", "sparse_steps", "dense_steps", "entries_sent", "entries_total")
        },
    }


def _fit_setting(
    model: Any, setting: KerasSetting, compression: Any, process_set: Any
) -> np.ndarray:
    """Train a model as the setting wants it; an unbuilt one is built by its first batch where it
    can be."""
    options: dict[str, Any] = {
        "average": {},
        "sum": {"op": hvd.Sum},
        "predivide": {"gradient_predivide_factor": 2.0},
    }[setting.reduction]
    if setting.grouping == "number":
        options["groups"] = 2
    if setting.grouping == "lists":
        model.build((None, FEATURES))
        options["groups"] = [
            model.layers[1].trainable_variables,
            model.layers[0].trainable_variables[:1],
        ]
    optimizer = DistributedOptimizer(
        OPTIMIZERS[setting.optimizer](RATE),
        compression=compression,
        process_set=process_set,
        backward_passes_per_step=setting.passes,
        **options,
    )
    execution = {
        "graph": {},
        "eager": {"run_eagerly": True},
        "four_steps": {"steps_per_execution": 4},
    }
    fit(model, optimizer, **execution[setting.execution])
    return weights_of(model)
