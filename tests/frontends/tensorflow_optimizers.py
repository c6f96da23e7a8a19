"""Worker: Keras optimizers that are handed over to the compressor, beside the same optimizers on
dense gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, Heard, caught
from _keras_models import (
    PAUSING,
    Changing,
    Make,
    count_steps,
    data_of_rank,
    falling,
    fit,
    make_built_model,
    moments,
    trained,
    weights_of,
)
from _tensorflow_cases import Compression, begin, hvd, run
from horovod.tensorflow.keras import DistributedOptimizer

keras = tf.keras
cases = Cases()


def beside_dense(
    name: str,
    *,
    make: Make,
    by_tape: bool = False,
    fitting: Any = None,
    passes: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """How far training with the compressor ends from training with the optimizer itself and dense
    gradients.

    fitting : options of ``fit``
    passes : batches that Horovod adds up, each of which counts in the optimizer's steps
    """
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
            distributed = DistributedOptimizer(
                optimizer, compression=compression, backward_passes_per_step=passes
            )
            fit(model, distributed, **fitting or {})
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
cases["beside_dense_sgd"] = partial(beside_dense, make=lambda: sgd(0.05), **SPARSE_ONLY)
cases["beside_dense_sgd_by_tape"] = partial(
    beside_dense, make=lambda: sgd(0.05), by_tape=True, **SPARSE_ONLY
)
# In a graph Keras 2 multiplies the product of momenta once a variable instead of once a step.
nadam = partial(beside_dense, fitting={"run_eagerly": True})
dense = {"min_numel": 10**6}
for name, trained_by, make in (
    ("nesterov", beside_dense, lambda: sgd(0.05, nesterov=True)),
    ("adam", beside_dense, lambda: adam(falling(0.01))),
    ("adam_of_two_batches", partial(beside_dense, passes=2), lambda: adam(0.01)),
    ("adamw", beside_dense, lambda: adamw(0.01)),
    ("adam_by_tape", partial(beside_dense, by_tape=True), lambda: adam(0.01)),
    ("adam_early_epsilon", beside_dense, lambda: adam(0.01, epsilon=0.1)),
    ("amsgrad", beside_dense, lambda: adam(0.01, amsgrad=True)),
    ("nadam", nadam, lambda: keras.optimizers.Nadam(0.01)),
):
    cases[f"beside_dense_{name}_never_compressed"] = partial(trained_by, make=make, **dense)


FALLING = {3: 0.2}


class WithNote(keras.optimizers.SGD):  # type: ignore[misc]
    """Only adds an option."""

    def __init__(self, *args: Any, note: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.note = note


legacy = partial(keras.optimizers.legacy.SGD, momentum=0.9)
for name, make in {
    "sgd_legacy": lambda: legacy(0.05, nesterov=True),
    "sgd_derived": lambda: WithNote(0.05, momentum=0.9),
    "sgd_clipped_without_momentum": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
}.items():
    cases[f"beside_dense_{name}"] = partial(beside_dense, make=make, **SPARSE_ONLY)
for name, make, momenta in (
    ("sgd_falling", sgd, FALLING),
    ("sgd_falling_legacy", legacy, FALLING),
    ("sgd_nesterov_pausing", partial(sgd, nesterov=True), PAUSING),
    ("sgd_pausing_legacy", legacy, PAUSING),
):
    eagerly = {"run_eagerly": "legacy" not in name, "callbacks": [Changing(momenta)]}
    cases[f"beside_dense_{name}"] = partial(
        beside_dense, make=partial(make, 0.05), fitting=eagerly, **SPARSE_ONLY
    )


def embedding(name: str, *, is_sparse: bool) -> dict[str, Any]:
    """A table whose gradient Keras gives as slices, of which Horovod is asked to make a tensor."""
    start = keras.initializers.RandomUniform(-0.5, 0.5, seed=3)
    inputs = np.random.RandomState(hvd.rank()).randint(0, 12, (16, 2))
    ends = []
    for compressed in (False, True):
        layers = [
            keras.layers.Embedding(12, 4, embeddings_initializer=start, input_length=2),
            keras.layers.Flatten(),
        ]
        model, optimizer = keras.Sequential(layers), sgd(0.05)
        model.build((None, 2))
        compression = hvd.Compression.none
        if compressed:
            compression = Compression.topk(
                model, density=1.0, name=name, optimizer=optimizer, **SPARSE_ONLY
            )
        distributed = DistributedOptimizer(
            optimizer, compression=compression, sparse_as_dense=not is_sparse
        )
        model.compile(distributed, "mse")
        try:
            model.fit(inputs, np.ones((16, 8), "f4"), batch_size=4, shuffle=False, verbose=0)
        finally:
            if compressed:
                compression.close()
        ends.append(weights_of(model))
    return {"difference": float(np.abs(ends[0] - ends[1]).max())}


cases["embedding_as_dense"] = partial(embedding, is_sparse=False)
cases["embedding_as_slices"] = partial(embedding, is_sparse=True)


@cases
def saved(name: str) -> dict[str, Any]:
    """What a model says of its optimizer that was saved, and is loaded without a compressor."""
    told = {}
    for kind, make in {"new": sgd, "legacy": legacy}.items():
        model, optimizer = make_built_model(), make(0.05, nesterov=True)
        compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
        fit(model, DistributedOptimizer(optimizer, compression=compressor))
        compressor.close()
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.h5")
            again = keras.models.load_model(f"{folder}/model.h5").optimizer
        config = again.get_config()
        told[kind] = [
            float(config["momentum"]),
            config["nesterov"],
            int(again.iterations.numpy()),
            len(again.variables()),
        ]
    return told


learns = partial(trained, distribute=DistributedOptimizer)
cases["sgd_trains"] = partial(learns, make=lambda: sgd(falling(0.05)))
cases["adam_trains"] = partial(learns, make=lambda: adam(0.01))


def heard_while(call: Callable[[], object]) -> list[str]:
    with Heard() as said:
        call()
    return said


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
            told = heard_while(partial(_train_rarely, name, make, hands_over=hands_over))
            key = f"{kind}, {'handed over' if hands_over else 'kept'}"
            said[key] = [text for text in told if "accuracy" in text]
    return said


def _train_rarely(name: str, make: Make, *, hands_over: bool) -> None:
    model, optimizer = make_built_model(), make()
    options = {"optimizer": optimizer} if hands_over else {}
    compressor = Compression.topk(
        model.trainable_variables, density=0.01, name=name, min_numel=10, **options
    )
    fit(model, DistributedOptimizer(optimizer, compression=compressor))
    compressor.close()


kept = partial(moments, train=train_by_tape)
cases["moments_sgd_compressed"] = partial(kept, make=lambda: sgd(0.05), **SPARSE_ONLY)
for name, make in {
    "moments_nesterov": lambda: sgd(0.05, nesterov=True),
    "moments_legacy": lambda: legacy(0.05),
    "moments_adam": lambda: adam(0.01),
    "moments_adamw": lambda: adamw(0.01),
}.items():
    cases[name] = partial(kept, make=make, **dense)


@cases
def moments_that_horovod_leaves(name: str) -> dict[str, list[str]]:
    """What is said where Horovod makes an optimizer of its own of one that has trained."""
    said = {}
    for kind, make in {"new": sgd, "legacy": legacy, "adam": adam}.items():
        for steps in (0, 3):
            model, optimizer = make_built_model(), make(0.05)
            if steps:
                count_steps(optimizer, model)
            compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
            distributed = DistributedOptimizer(optimizer, compression=compressor)
            told = heard_while(partial(fit, model, distributed))
            compressor.close()
            said[f"{kind}, {steps} steps"] = [text for text in told if "moments" in text]
    return said


@cases
def resumed_at_another_momentum(name: str) -> bool:
    """A state is taken by a compressor whose optimizer has other hyper-parameters by now."""
    model, states = make_built_model(), []
    for momentum in (0.9, 0.5):
        optimizer = keras.optimizers.SGD(0.05, momentum=momentum, nesterov=momentum == 0.5)
        compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
        for state in states:
            compressor.load_state_dict(state)
        train_by_tape(model, optimizer, compressor)
        states.append(compressor.state_dict())
        compressor.close()
    kept = [min(each["steps"] for each in state["tensors"].values()) for state in states]
    return kept[1] == 2 * kept[0]


@cases
def thrown_away(name: str) -> dict[str, list[str]]:
    """What is said of gradients that are applied, or clipped, or not applied."""
    said = {}
    for kind in ("applied", "decayed", "clipped", "thrown away"):
        model, inputs, optimizer = make_built_model(), data_of_rank()[0], sgd(0.05)
        if kind == "decayed":
            optimizer = adamw(0.05)
        compressor = Compression.topk(
            model, density=0.5, name=name, min_numel=10, optimizer=optimizer
        )

        def train(
            model: Any = model,
            compressor: Any = compressor,
            optimizer: Any = optimizer,
            inputs: Any = inputs,
            kind: str = kind,
        ) -> None:
            for _ in range(6):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(inputs)))
                distributed = hvd.DistributedGradientTape(tape, compression=compressor)
                gradients = distributed.gradient(loss, model.trainable_variables)
                if kind == "clipped":
                    gradients = tf.clip_by_global_norm(gradients, 0.01)[0]
                if kind != "thrown away":
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        told = heard_while(train)
        compressor.close()
        said[kind] = [text for text in told if "gradients" in text]
    return said


@cases
def what_no_memory_knows(name: str) -> dict[str, str]:
    model = make_built_model()

    def make(optimizer: Any) -> None:
        Compression.topk(model, density=0.1, name=name, optimizer=optimizer).close()

    def train(optimizer: Any, handed: Any = None, **options: Any) -> None:
        compressor = Compression.topk(
            model, density=0.1, name=name, optimizer=handed, **options, **SPARSE_ONLY
        )
        try:
            fit(model, DistributedOptimizer(optimizer, compression=compressor))
        finally:
            compressor.close()

    def train_alone() -> None:
        optimizer = sgd(0.05)
        compressor = Compression.topk(model, density=0.1, name=name, optimizer=optimizer)
        try:
            fit(model, optimizer)
        finally:
            compressor.close()

    plain = partial(keras.optimizers.SGD, 0.05)
    calls = {
        "adam clipnorm": lambda: make(adam(0.01, clipnorm=1.0)),
        "clipnorm": lambda: make(sgd(0.05, clipnorm=1.0)),
        "global_clipnorm": lambda: make(sgd(0.05, global_clipnorm=1.0)),
        "clipvalue": lambda: make(legacy(0.05, clipvalue=1.0)),
        "behind a memory": lambda: train(plain(clipvalue=1.0), memory="momentum_correction"),
        "another": lambda: train(sgd(0.05), handed=sgd(0.05)),
        "no compressor": train_alone,
    }
    return {key: caught(call) for key, call in calls.items()}


if __name__ == "__main__":
    begin(2)
    run(cases)
