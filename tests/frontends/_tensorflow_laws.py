"""Laws 1 and 2: nothing is lost, and replicas stay identical."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _tensorflow_cases import (
    Books,
    Compression,
    digest_of,
    hvd,
    linear_loss,
    residuals_of,
    tape_gradients,
    variables_of,
)
from horovod.tensorflow.keras import DistributedOptimizer

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.tracing import SETTING, path_of

LAWS = Cases()
SHAPES = ((40, 30), (50,), (8, 8, 3))
LAW_1_STEPS, LAW_2_STEPS, GROUPED_STEPS = 20, 200, 8


def conserved(name: str, *, as_function: bool) -> dict[str, Any]:
    """What was applied and what is kept back, against all that there was."""
    shapes = {f"tensor{i}": shape for i, shape in enumerate(SHAPES)}
    options = {"density": 0.05, "name": name, **SPARSE_ONLY}
    books = Books(
        shapes, lambda params: Compression.ldte_bs(params, **options), as_function=as_function
    )
    for step in range(LAW_1_STEPS):
        books.take_step(books.gradients(step))
    lost, kept, stats = books.lost(), books.waiting(), books.compressor.stats()
    books.compressor.close()
    return {
        "lost": lost,
        "kept": kept,
        "density": stats["density_achieved"],
        **{key: stats[key] for key in ("steps", "dense_steps")},
    }


@LAWS
def nothing_is_lost_in_a_function(name: str) -> dict[str, Any]:
    """With a timeline, which the compressor opens when it meets its variables."""
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        result = conserved(name, as_function=True)
        events = read_trace(path_of(os.environ[SETTING], hvd.rank()))
    finally:
        del os.environ[SETTING]
    return {**result, "spans": Counter(event["name"] for event in events if event["ph"] == "X")}


@LAWS
def nothing_is_lost_eagerly(name: str) -> dict[str, Any]:
    return conserved(name, as_function=False)


def teacher_data() -> tuple[Any, Any]:
    """Inputs of this rank's own, and what a fixed teacher says of them."""
    draw = np.random.RandomState(50 + hvd.rank())
    inputs = draw.standard_normal((64, 32)).astype("f4")
    teacher = np.random.RandomState(1).standard_normal((32, 8)).astype("f4") / 6
    return inputs, np.tanh(inputs @ teacher)


def student() -> Any:
    """A Keras model that starts the same on every rank."""
    start = tf.keras.initializers.RandomUniform(-0.2, 0.2, seed=4)
    layers = [
        tf.keras.layers.Dense(64, activation="tanh", kernel_initializer=start, input_shape=(32,)),
        tf.keras.layers.Dense(8, kernel_initializer=start),
    ]
    return tf.keras.Sequential(layers)


def trained(name: str, model: Any, train: Any, **options: Any) -> dict[str, Any]:
    """Train at density 0.01; what the weights are, bit for bit, and whether anything was learnt."""
    inputs, targets = teacher_data()
    options = {"min_numel": 256, **options}
    compressor = Compression.ldte_bs(model, density=0.01, allow_dense=False, name=name, **options)
    before = float(tf.reduce_mean((model(inputs) - targets) ** 2))
    train(compressor, tf.constant(inputs), tf.constant(targets))
    after = float(tf.reduce_mean((model(inputs) - targets) ** 2))
    stats = compressor.stats()
    residual = residuals_of(compressor)
    compressor.close()
    return {
        "digest": digest_of(model.get_weights()),
        "residual": digest_of(residual.values()),
        "before": before,
        "after": after,
        **{
            key: stats[key]
            for key in ("steps", "dense_steps", "density_achieved", "fallbacks", "payload_bytes")
        },
    }


def train_by_tape(
    model: Any, compressor: Any, inputs: Any, targets: Any, steps: int, groups: Any = None
) -> None:
    optimizer = tf.keras.optimizers.SGD(0.3)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - targets) ** 2)
        wrapped = hvd.DistributedGradientTape(tape, compression=compressor, groups=groups)
        gradients = wrapped.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for _ in range(steps):
        step()


def train_by_keras(
    model: Any, compressor: Any, inputs: Any, targets: Any, steps: int, groups: Any = None
) -> None:
    optimizer = DistributedOptimizer(
        tf.keras.optimizers.SGD(0.3), compression=compressor, groups=groups
    )
    model.compile(optimizer, "mse", steps_per_execution=4)
    model.fit(inputs, targets, batch_size=16, epochs=steps // 4, shuffle=False, verbose=0)


def replicas(name: str, train: Any) -> dict[str, Any]:
    model = student()
    return trained(name, model, partial(train, model, steps=LAW_2_STEPS))


def grouped(name: str, train: Any) -> dict[str, Any]:
    """The same training with every gradient alone and in groups of Horovod's, by how they are
    grouped.

    On two ranks the biases go dense; on more, Horovod's own sums of them depend on what is fused
    with them.
    """
    dense = {"min_numel": 256} if hvd.size() == 2 else {"min_numel": 1, "compress_1d": True}
    results = {}
    for label in ("alone", "one", "two", "lists"):
        model = student()
        hidden, hidden_bias, out, _ = model.trainable_variables
        groups: Any = {"alone": None, "one": 1, "two": 2, "lists": [[out, hidden_bias, hidden]]}[
            label
        ]
        run = partial(train, model, steps=GROUPED_STEPS, groups=groups)
        results[label] = trained(f"{name}.{label}", model, run, **dense)
    return results


for label, train in {"a_tape": train_by_tape, "keras": train_by_keras}.items():
    LAWS[f"replicas_of_{label}_stay_identical"] = partial(replicas, train=train)
    LAWS[f"groups_of_{label}_make_no_difference"] = partial(grouped, train=train)


@LAWS
def names_of_groups_are_those_of_other_ranks_and_traces(name: str) -> list[list[str]]:
    """The collectives' names in every trace, where one tensor has no gradient."""
    variables = variables_of([*SHAPES, (7, 9), (9, 5)])
    compressor = Compression.topk(variables, density=0.1, name=name, **SPARSE_ONLY)

    @tf.function(reduce_retracing=False)
    def step(batch: Any) -> Any:
        coefficients = [
            None if i == 1 else tf.reduce_mean(batch) * tf.ones(v.shape)
            for i, v in enumerate(variables)
        ]
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor, groups=2)

    names = []
    for size in (1, 2, 3):
        step(tf.ones(size))
        library = step.get_concrete_function(tf.TensorSpec([size])).graph.as_graph_def().library
        nodes = [node for function in library.function for node in function.node_def]
        names.append(sorted(node.name for node in nodes if node.op.startswith("Horovod")))
    compressor.close()
    return names


@LAWS
def high_density_goes_dense(name: str) -> dict[str, Any]:
    """At density 0.5, entries are no fewer bytes than everything, on two ranks and on more."""
    variables = variables_of(SHAPES)
    compressor = Compression.ldte_bs(
        variables, density=0.5, min_numel=1, compress_1d=True, name=name
    )
    draw = np.random.RandomState(hvd.rank())
    worst = 0.0
    for _ in range(3):
        gradients = [tf.constant(draw.standard_normal(shape).astype("f4")) for shape in SHAPES]
        loss = linear_loss(variables, gradients)
        ours = tape_gradients(loss, variables, compressor)
        none = tape_gradients(loss, variables, hvd.Compression.none)
        worst = max([worst, *(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(ours, none))])
    stats = compressor.stats()
    residual = residuals_of(compressor)
    compressor.close()
    keys = ("steps", "sparse_steps", "dense_steps", "entries_sent")
    kept = sum(float(np.abs(array).sum()) for array in residual.values())
    return {"difference": worst, "kept": kept, **{key: stats[key] for key in keys}}
