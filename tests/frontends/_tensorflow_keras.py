"""Law 3 through Keras ``fit``: the weights it ends with, against those that dense Horovod ends
with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _keras_models import (
    BATCHES,
    FEATURES,
    RATE,
    fit,
    make_built_model,
    make_model,
    params_of,
    setting_of_groups,
    weights_of,
)
from _tensorflow_cases import Compression, hvd
from _tensorflow_settings import Setting
from horovod.tensorflow.keras import DistributedOptimizer

OPTIMIZERS = {"new": tf.keras.optimizers.SGD, "legacy": tf.keras.optimizers.legacy.SGD}


@functools.cache
def weights_trained_alone() -> np.ndarray:
    """What plain descent on this rank's data gives, in any setting: what reducing must change."""
    model = make_model()
    fit(model, OPTIMIZERS["new"](RATE))
    return weights_of(model)


def compare_keras(name: str, setting: Setting, process_sets: dict[str, Any]) -> dict[str, Any]:
    """Fit compressed at density 1.0, dense and alone, from the same start: how far apart the
    weights end."""
    process_set = process_sets[setting.place.members if hvd.size() > 2 else "all"]
    model = make_built_model() if setting.given == "list" else make_model()
    compressor = getattr(Compression, setting.method)(
        params_of(model, setting.given),
        density=1.0,
        process_set=process_set,
        name=name,
        **SPARSE_ONLY,
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


def _fit_setting(model: Any, setting: Setting, compression: Any, process_set: Any) -> np.ndarray:
    """Train a model as the setting wants it; an unbuilt one is built by its first batch where it
    can be."""
    options: dict[str, Any] = {
        "average": {},
        "sum": {"op": hvd.Sum},
        "predivide": {"gradient_predivide_factor": 2.0},
    }[setting.reduction]
    if setting.grouping == "lists":
        model.build((None, FEATURES))
    options["groups"] = setting_of_groups(model, setting.grouping)
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
