"""What the workers with Keras 2 and with Keras 3 share: a small model, a rank's data, and runs of
optimizers that are handed over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from _tensorflow_cases import Compression, hvd

keras = tf.keras
BATCHES, BATCH_SIZE, FEATURES = 8, 2, 6
RATE = 0.05
PAUSING = {2: 0.5, 4: 0.0, 6: 0.9}
"""Momentum from some batches on."""
Make = Callable[[], Any]
Distribute = Callable[..., Any]


def make_model(seed: int = 1) -> Any:
    """Unbuilt, and the same in every run; tangents, as rectifiers make exact zeros."""
    first = _dense(5, seed, name="first", activation="tanh")
    return keras.Sequential([first, _dense(3, seed + 1, name="second")])


def _dense(units: int, seed: int, **options: Any) -> Any:
    start = keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)
    return keras.layers.Dense(units, kernel_initializer=start, **options)


def make_built_model(seed: int = 1) -> Any:
    """As ``make_model``, with its variables."""
    model = make_model(seed)
    model.build((None, FEATURES))
    return model


def data_of_rank() -> tuple[np.ndarray, np.ndarray]:
    """This rank's own."""
    draw = np.random.RandomState(hvd.rank())
    count = BATCHES * BATCH_SIZE
    inputs, targets = draw.standard_normal((count, FEATURES)), draw.standard_normal((count, 3))
    return inputs.astype("f4"), targets.astype("f4")


def weights_of(model: Any) -> np.ndarray:
    """All weights as one float64 vector."""
    return np.concatenate([np.asarray(w, np.float64).ravel() for w in model.get_weights()])


def fit(model: Any, optimizer: Any, callbacks: Any = (), **options: Any) -> Any:
    """Train for one epoch, on this rank's data; return what was logged."""
    model.compile(optimizer, "mse", **options)
    return go_on(model, callbacks)


def go_on(model: Any, callbacks: Any = ()) -> Any:
    return model.fit(
        *data_of_rank(),
        batch_size=BATCH_SIZE,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    ).history


def setting_of_groups(model: Any, grouping: str) -> Any:
    """Horovod's ``groups`` for a built model: None, a number, or lists of variables."""
    if grouping != "lists":
        return {"single": None, "number": 2}[grouping]
    return [model.layers[1].trainable_variables, model.layers[0].trainable_variables[:1]]


def params_of(model: Any, given: str) -> Any:
    """A model as a compressor may be given it."""
    if given == "callable":
        return lambda: model.trainable_variables
    return model.trainable_variables if given == "list" else model


def falling(rate: float) -> Any:
    """A schedule that changes the rate at every step, and is 0 for some."""
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [1, 2, 4], [rate, rate / 4, 0.0, rate / 2]
    )


class Changing(keras.callbacks.Callback):  # type: ignore[misc]
    """Momentum that is another at some batches of an epoch."""

    def __init__(self, momenta: dict[int, float]) -> None:
        super().__init__()
        self.momenta = momenta

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch in self.momenta:
            optimizer = self.model.optimizer
            if isinstance(optimizer.momentum, float):
                optimizer.momentum = self.momenta[batch]
            else:
                optimizer.momentum.assign(self.momenta[batch])


def trained(
    name: str,
    *,
    make: Make,
    distribute: Distribute,
    method: str = "ldte_bs",
    hands_over: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Losses of a fit that learns, at a density that sends few entries; what replicas end with."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(4)])
    model.build((None, 12))
    optimizer = make()
    handed = {"optimizer": optimizer} if hands_over else {}
    compressor = getattr(Compression, method)(
        model, density=0.05, name=name, min_numel=20, allow_dense=False, **handed, **options
    )
    inputs = np.random.RandomState(hvd.rank()).standard_normal((160, 12)).astype("f4")
    model.compile(distribute(optimizer, compression=compressor), "mse")
    losses = model.fit(
        inputs, inputs[:, 4:8], batch_size=16, epochs=8, shuffle=False, verbose=0
    ).history["loss"]
    achieved, tensors = compressor.stats()["density_achieved"], compressor.state_dict()["tensors"]
    compressor.close()
    return {
        "losses": [losses[0], losses[-1]],
        "weights": weights_of(model).tolist(),
        "density": achieved,
        "arrays": sorted(tensors[sorted(tensors)[1]]["arrays"]),
    }


def count_steps(optimizer: Any, model: Any) -> None:
    """Let an optimizer take three steps by itself."""
    gradients = [tf.ones(variable.shape) * 0.3 for variable in model.trainable_variables]
    for _ in range(3):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def by_checkpoint(model: Any, optimizer: Any, plain: Any) -> None:
    """Let a plain optimizer take over what ``tf.train.Checkpoint`` saves of another."""
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(model=model, optimizer=optimizer).write(f"{folder}/state")
        count_steps(plain, model)
        loaded = tf.train.Checkpoint(model=model, optimizer=plain).read(f"{folder}/state")
        loaded.assert_existing_objects_matched()


def moments(
    name: str,
    *,
    make: Make,
    train: Callable[[Any, Any, Any], None],
    save: Callable[[Any, Any, Any], None] = by_checkpoint,
    **options: Any,
) -> dict[str, float]:
    """How far training ends from dense where an optimizer has moments when it is handed over, where
    all of its variables are set to zero, and where plain Keras goes on from what was saved.

    train : a model by an optimizer and a compression
    """
    ends = []
    for is_handed in (False, True):
        model, optimizer, plain = make_built_model(), make(), make()
        count_steps(optimizer, model)
        compressor, found = hvd.Compression.none, []
        if is_handed:
            compressor = Compression.topk(
                model, density=1.0, name=name, optimizer=optimizer, **options
            )
        train(model, optimizer, compressor)
        found.append(weights_of(model))
        variables = optimizer.variables
        rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
        for variable in variables() if callable(variables) else variables:
            if variable is not rate:
                variable.assign(tf.zeros(variable.shape, variable.dtype))
        train(model, optimizer, compressor)
        found.append(weights_of(model))
        save(model, optimizer, plain)
        train(model, plain, hvd.Compression.none)
        found.append(weights_of(model))
        if is_handed:
            compressor.close()
        ends.append(found)
    apart = [float(np.abs(dense - ours).max()) for dense, ours in zip(*ends)]
    return dict(zip(("taken over", "cleared", "gone on"), apart))
