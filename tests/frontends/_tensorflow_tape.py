"""Law 3 through ``DistributedGradientTape``: the gradients it gives, against those that dense
Horovod gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY
from _outcomes import ULP
from _tensorflow_cases import Compression, hvd, summed
from _tensorflow_settings import Setting

STEPS = 2
WORDS = 7
"""Rows of the embedding; every batch has each of them, so that no gradient has a row of zeros."""


class Network:
    """A small network that makes no zeros: hyperbolic tangents, not rectifiers.  The same on every
    rank."""

    def __init__(self, setting: Setting) -> None:
        self._draw = np.random.RandomState(5)
        self._dtype = tf.as_dtype(setting.dtype)
        self._wide = tf.float64 if setting.dtype == "float64" else tf.float32
        self.local_layers: list[Any] = []
        self.first = self._weight("first", WORDS if setting.network == "embedding" else 6, 5)
        self.variables = [self.first]
        self._add_special(setting.network)
        self.bias = self._weight("bias", 5)
        self.second = self._weight("second", 5, 3)
        self.variables += [self.bias, self.second]

    def _weight(self, name: str, *shape: int) -> Any:
        return tf.Variable(tf.cast(0.5 * self._draw.standard_normal(shape), self._dtype), name=name)

    def _add_special(self, network: str) -> None:
        self.network = network
        if network == "some_without_gradient":
            self.variables += [self._weight("unused", 5, 3), self._weight("unused_too", 5)]
        if network == "local_layer":
            layer = tf.keras.layers.Dense(5, dtype=self._dtype.name, kernel_initializer="identity")
            layer.build((None, 5))
            self.local_layers = [layer]
            self.variables += layer.trainable_variables
        if network == "scalar_and_empty":
            self.scale, self.empty = self._weight("scale"), self._weight("empty", 0, 3)
            self.variables += [self.scale, self.empty]

    def loss(self, batch: Any) -> Any:
        """Computed with at least 32 bits, so that 16-bit gradients are rounded once."""
        wide = {id(v): tf.cast(v, self._wide) for v in self.variables}
        if self.network == "embedding":
            words = tf.concat(
                [tf.range(WORDS), tf.cast(tf.abs(batch[:, 0]) * 3, tf.int32) % WORDS], 0
            )
            hidden = tf.cast(tf.gather(self.first, words), self._wide)
        else:
            hidden = tf.cast(batch, self._wide) @ wide[id(self.first)]
        hidden = tf.tanh(hidden + wide[id(self.bias)])
        if self.local_layers:
            kernel, bias = self.local_layers[0].trainable_variables
            hidden = tf.tanh(hidden @ wide[id(kernel)] + wide[id(bias)])
        if self.network == "scalar_and_empty":
            hidden = hidden * wide[id(self.scale)] + tf.reduce_sum(wide[id(self.empty)])
        return tf.reduce_sum(tf.tanh(hidden @ wide[id(self.second)]) ** 2)


def compare_tape(name: str, setting: Setting, process_sets: dict[str, Any]) -> dict[str, Any]:
    """Gradients of some steps, compressed at density 1.0 and dense: how far apart, and what was
    sent."""
    process_set = process_sets[setting.place.members if hvd.size() > 2 else "all"]
    network = Network(setting)
    registered = [
        v
        for v in network.variables
        if not any(v is w for layer in network.local_layers for w in layer.weights)
    ]
    compressor = getattr(Compression, setting.method)(
        registered, density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    sparse = _gradient_function(network, setting, compressor, process_set)
    draw = np.random.RandomState(100 + hvd.rank())
    rows = []
    for step in range(STEPS):
        batch = tf.constant(draw.standard_normal((8, 6)), tf.float32)
        alone = _dense_gradients(network, batch)
        reference = _reference(network, setting, batch, alone, process_set)
        rows += _compare(
            network, setting, process_set, sparse(batch), reference, alone, f"{name}.{step}"
        )
    stats = compressor.stats()
    compressor.close()
    sent = [
        v
        for v, g in zip(network.variables, alone)
        if g is not None and any(v is w for w in registered)
    ]
    return {
        "is_reduced": process_set.included() and process_set.size() > 1,
        "error_ulps": max(row[0] for row in rows),
        "effect_ulps": max(row[1] for row in rows),
        "numel": STEPS * sum(int(tf.size(v)) for v in sent),
        "tensor_steps": STEPS * sum(int(tf.size(v)) > 0 for v in sent),
        "dtypes_kept": all(row[2] for row in rows),
        **{
            key: stats[key]
            for key in ("steps", "sparse_steps", "dense_steps", "entries_sent", "entries_total")
        },
    }


def _gradient_function(
    network: Network, setting: Setting, compression: Any, process_set: Any
) -> Callable[[Any], Any]:
    options: dict[str, Any] = {
        "average": {},
        "sum": {"op": hvd.Sum},
        "predivide": {"gradient_predivide_factor": 2.0},
    }[setting.reduction]
    lists = [[network.second, network.first], [network.bias]]
    options |= {"single": {}, "number": {"groups": 2}, "lists": {"groups": lists}}[setting.grouping]
    options |= {"process_set": process_set, "compression": compression, "sparse_as_dense": True}

    def gradients(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            value = network.loss(batch)
        if network.local_layers:
            wrapped = hvd.PartialDistributedGradientTape(
                tape, local_layers=network.local_layers, **options
            )
        else:
            wrapped = hvd.DistributedGradientTape(tape, **options)
        return wrapped.gradient(value, network.variables)

    return tf.function(gradients) if setting.mode == "function" else gradients


def _dense_gradients(network: Network, batch: Any) -> list[Any]:
    """This rank's own gradients."""
    with tf.GradientTape() as tape:
        value = network.loss(batch)
    gradients = tape.gradient(value, network.variables)
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def _reference(
    network: Network, setting: Setting, batch: Any, alone: list[Any], process_set: Any
) -> list[Any]:
    """What dense Horovod gives; for 16 bits, which it sums coarsely or not at all, the float32 sum
    by hand."""
    if setting.dtype in ("float32", "float64"):
        return list(_gradient_function(network, setting, hvd.Compression.none, process_set)(batch))
    local = {v.ref() for layer in network.local_layers for v in layer.trainable_variables}
    reduced = []
    for i, (variable, gradient) in enumerate(zip(network.variables, alone)):
        if (
            gradient is not None and variable.ref() in local
        ):  # Horovod does so outside of the process set, too
            reduced.append(gradient / process_set.size())
        elif gradient is None or not process_set.included():
            reduced.append(gradient)
        else:
            total = summed(tf.cast(gradient, tf.float32), f"by_hand.{i}", process_set)
            divisor = 1 if setting.reduction == "sum" else process_set.size()
            reduced.append(tf.cast(tf.constant(total / divisor, tf.float32), gradient.dtype))
    return reduced


def _compare(
    network: Network,
    setting: Setting,
    process_set: Any,
    ours: Any,
    reference: Any,
    alone: Any,
    name: str,
) -> list[tuple[float, float, bool]]:
    """For every gradient: its error, and what reducing changed, in units of the rounding of the
    ranks' magnitudes."""
    rows = []
    for i, (given, wanted, own) in enumerate(zip(ours, reference, alone)):
        if wanted is None or given is None:
            assert given is None and wanted is None, (
                f"{network.variables[i].name}: {given} and {wanted}"
            )
            continue
        magnitude = np.abs(np.asarray(own, np.float64))
        if process_set.included():
            magnitude = summed(magnitude, f"magnitude.{name}.{i}", process_set)
            magnitude = magnitude if setting.reduction == "sum" else magnitude / process_set.size()
        if not magnitude.size:
            rows.append((0.0, 0.0, given.dtype == own.dtype and given.shape == own.shape))
            continue
        unit = ULP[setting.dtype] * magnitude
        error = np.abs(np.asarray(given, np.float64) - np.asarray(wanted, np.float64)) / unit
        effect = np.abs(np.asarray(own, np.float64) - np.asarray(wanted, np.float64)) / unit
        rows.append(
            (
                float(error.max()),
                float(effect.max()),
                given.dtype == own.dtype and given.shape == own.shape,
            )
        )
    return rows
