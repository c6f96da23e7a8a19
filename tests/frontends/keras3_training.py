"""Worker: Keras 3 through ``hvd_sparse.keras``.  Arguments: "keras3", ranks, and a folder."""

from __future__ import annotations

import sys
import tempfile
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, caught
from _framework import fw
from _keras_models import (
    BATCH_SIZE,
    BATCHES,
    FEATURES,
    PAUSING,
    RATE,
    Changing,
    Make,
    data_of_rank,
    falling,
    fit,
    go_on,
    make_built_model,
    make_model,
    moments,
    params_of,
    setting_of_groups,
    trained,
    weights_of,
)
from _tensorflow_cases import (
    Compression,
    digest_of,
    hvd,
    linear_loss,
    residuals_of,
)
from blocks import blocks_for
from horovod.tensorflow.keras import DistributedOptimizer as HorovodsOptimizer

from hvd_sparse.keras import DistributedGradientTape, DistributedOptimizer, callbacks
from hvd_sparse.keras.elastic import KerasState
from hvd_sparse.tensorflow import CompressorState, SaveCompressor
from hvd_sparse.tensorflow.elastic import TensorFlowKerasState

FEW = {"density": 0.2, "min_numel": 1, "allow_dense": False}
adam = partial(keras.optimizers.Adam, 0.01)


def train_by_hand(
    model: Any,
    optimizer: Any,
    name: str,
    op: Any,
    process_set: Any,
    passes: int = 1,
    momenta: dict[int, float] | None = None,
) -> np.ndarray:
    """Train as ``fit`` does, with gradients that are reduced one by one; return the weights.

    op : None where every rank trains alone
    passes : batches whose gradients are averaged before
    momenta : the optimizer's from some batches on
    """
    inputs, targets = data_of_rank()
    model.build((None, FEATURES))
    sums = [0.0] * len(model.trainable_variables)
    for batch in range(BATCHES):
        if momenta and batch in momenta:
            optimizer.momentum = momenta[batch]
        part = slice(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs[part]) - targets[part]))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        sums = [one + gradient / passes for one, gradient in zip(sums, gradients)]
        if (batch + 1) % passes == 0:
            if op is not None and process_set.included():
                sums = [
                    hvd.allreduce(each, op=op, name=f"{name}.{i}", process_set=process_set)
                    for i, each in enumerate(sums)
                ]
            optimizer.apply(sums, model.trainable_variables)
            sums = [0.0] * len(sums)
    return weights_of(model)


def momentum(**options: Any) -> Any:
    return keras.optimizers.SGD(RATE, momentum=0.9, **options)


def beside_average_by_hand(
    name: str,
    *,
    process_set: Any,
    make: Make = momentum,
    make_by_hand: Make | None = None,
    is_dense: bool = False,
    op: Any = hvd.Average,
    given: str = "unbuilt_model",
    grouping: str = "single",
    passes: int = 1,
    execution: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """How far ``fit`` ends from gradients that are averaged by hand, and those from alone."""
    make_by_hand = make_by_hand or make
    model = make_model() if given == "unbuilt_model" and grouping != "lists" else make_built_model()
    compressor = Compression.topk(
        params_of(model, given), density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    compression = hvd.Compression.none if is_dense else compressor
    groups = setting_of_groups(model, grouping)
    distributed = DistributedOptimizer(
        make(), compression=compression, op=op, groups=groups, process_set=process_set, **options
    )
    fit(model, distributed, **(execution or {}))
    stats = compressor.stats()
    compressor.close()
    hand = [
        train_by_hand(make_model(), make_by_hand(), name, how, process_set, passes)
        for how in (op, None)
    ]
    return {
        "is_reduced": process_set.included(),
        "difference": float(np.abs(weights_of(model) - hand[0]).max()),
        "effect": float(np.abs(hand[1] - hand[0]).max()),
        "sparse_steps": stats["sparse_steps"],
        "expected_steps": 0 if is_dense else BATCHES // passes * len(model.trainable_variables),
        "weights": weights_of(model).tolist(),
    }


def handed_over(
    name: str,
    *,
    make: Any,
    passes: int = 1,
    is_scaled: bool = False,
    momenta: dict[int, float] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """How far training with the memory in the optimizer's place ends from the optimizer itself."""
    start, model = make_built_model(), make_built_model()
    handed = make(gradient_accumulation_steps=passes) if passes > 1 else make()
    compressor = Compression.topk(model, density=1.0, name=name, optimizer=handed, **options)
    around = keras.optimizers.LossScaleOptimizer(handed) if is_scaled else handed
    fitting = {"callbacks": [Changing(momenta)], "run_eagerly": True} if momenta else {}
    fit(model, DistributedOptimizer(around, compression=compressor), **fitting)
    by_hand = train_by_hand(
        make_built_model(), make(), name, hvd.Average, hvd.global_process_set, passes, momenta
    )
    moved = np.abs(by_hand - weights_of(start)).max()
    result = {
        "difference": float(np.abs(by_hand - weights_of(model)).max() / moved),
        "weights": weights_of(model).tolist(),
        "sparse_steps": compressor.stats()["sparse_steps"],
    }
    compressor.close()
    return result


def train(model: Any, optimizer: Any, compression: Any) -> None:
    if getattr(model, "optimizer", None) is not optimizer:
        model.compile(DistributedOptimizer(optimizer, compression=compression), "mse")
    go_on(model)


def by_store(model: Any, optimizer: Any, plain: Any) -> None:
    """Let a plain optimizer take over what a saved model has of another."""
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    plain.build(model.trainable_variables)
    plain.load_own_variables(store)


def by_checkpoint(model: Any, optimizer: Any, plain: Any) -> None:
    """As ``by_store``, by ``tf.train.Checkpoint``; an optimizer of Keras 3 has its model."""
    plain.build(model.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(optimizer=optimizer).write(f"{folder}/state")
        loaded = tf.train.Checkpoint(optimizer=plain).read(f"{folder}/state")
        loaded.assert_existing_objects_matched()


class Groups(keras.callbacks.Callback):
    """Notes the sizes of the groups at every batch; None while nothing is planned."""

    def __init__(self, compressor: Any) -> None:
        super().__init__()
        self.compressor, self.seen = compressor, []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        groups = self.compressor.groups
        self.seen.append(groups and sorted(map(len, groups)))


def planned(name: str) -> dict[str, Any]:
    """Weights behind a fit without a plan and with one, and the groups at every batch."""
    found: dict[str, Any] = {}
    for groups in (None, "planned"):
        model = make_built_model()
        compressor = Compression.ldte_bs(model, groups=groups, name=f"{name}.{groups}", **FEW)
        watching = Groups(compressor)
        ours = [callbacks.PlanGroupsCallback(compressor), watching] if groups else []
        model.compile(DistributedOptimizer(momentum(), compression=compressor), "mse")
        for _ in range(3):
            go_on(model, ours)
        found[str(groups)], found["groups"] = weights_of(model).tolist(), watching.seen
        compressor.close()
    return found


def loss_scaling(name: str, *, hands_over: bool, **inner_options: Any) -> dict[str, Any]:
    """An infinite input on one rank, at two batches of twelve; the wrapper is around."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_built_model()
        inner = momentum(**inner_options)
        optimizer = keras.optimizers.LossScaleOptimizer(
            inner, initial_scale=2.0**10, dynamic_growth_steps=3
        )
        options = {"optimizer": inner} if hands_over else {}
        compressor = Compression.topk(model, name=name, **FEW, **options)
        model.compile(DistributedOptimizer(optimizer, compression=compressor), "mse")
        scales, is_kept, inputs, targets = [], [], *data_of_rank()
        for step in range(12):
            batch = inputs[:4].copy()
            if step in (4, 9) and hvd.rank() == hvd.size() - 1:
                batch[0, 0] = np.inf
            before = weights_of(model)
            model.train_on_batch(batch, targets[:4])
            scales.append(float(optimizer.dynamic_scale.numpy()))
            is_kept.append(bool((weights_of(model) == before).all()))
        compressor.close()
        store: dict[str, Any] = {}
        optimizer.save_own_variables(store)
        plain = keras.optimizers.LossScaleOptimizer.from_config(optimizer.get_config())
        plain.build(model.trainable_variables)
        plain.load_own_variables(store)
        optimizer.load_own_variables(store)
        scales += [float(each.dynamic_scale.numpy()) for each in (plain, optimizer)]
        fits = len(store) == len(plain.variables)
    finally:
        keras.config.set_dtype_policy("float32")
    return {
        "fits": fits,
        "scales": scales,
        "is_kept": is_kept,
        "weights": weights_of(model).tolist(),
    }


def saved_model(name: str, *, make: Any, folder: Path) -> dict[str, Any]:
    """A model is saved in mid-training, loads without our classes, and goes on bit for bit."""
    model, optimizer, path = make_built_model(), make(), folder / f"{name}.{hvd.rank()}.keras"
    compressor = Compression.topk(model, name=name, optimizer=optimizer, **FEW)
    fit(model, DistributedOptimizer(optimizer, compression=compressor))
    model.save(path)
    state = compressor.state_dict()
    with zipfile.ZipFile(path) as archive:
        says_ours = "hvd_sparse" in archive.read("config.json").decode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns where variables do not fit
        loaded = keras.models.load_model(path)
    again = loaded.optimizer
    result = {
        "says_ours": says_ours,
        "is_plain": type(again) is type(make()),
        "momentum": again.get_config().get("momentum"),
        "iterations": int(again.iterations.numpy()),
        "is_loaded": bool((weights_of(loaded) == weights_of(model)).all()),
    }
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    optimizer._iterations.assign(0)
    optimizer.load_own_variables(store)
    result["went_back"] = int(optimizer.iterations.numpy())
    go_on(model)
    compressor.close()
    second = Compression.topk(loaded, name=name, optimizer=again, **FEW)
    second.load_state_dict(state)
    fit(loaded, DistributedOptimizer(again, compression=second))
    second.close()
    return {**result, "ends": [weights_of(each).tolist() for each in (model, loaded)]}


def checkpoint(name: str, *, folder: Path) -> dict[str, Any]:
    """``tf.train.Checkpoint`` of model, optimizer and compressor, and the callback's file."""
    ends = []
    for source in ("first", "own", "all"):
        model, optimizer = make_built_model(), momentum()
        compressor = Compression.topk(model, name=f"{name}.{source}", **FEW)
        DistributedOptimizer(optimizer, compression=compressor)
        optimizer.build(model.trainable_variables)
        compressor.resolve()
        saved = tf.train.Checkpoint(
            model=model, optimizer=optimizer, compressor=CompressorState(compressor)
        )
        if source == "first":
            fit(model, optimizer, [SaveCompressor(compressor, folder / "all.{epoch}")])
            saved.write(str(folder / f"rank{hvd.rank()}"))
        else:
            saved.read(str(folder / f"rank{hvd.rank()}")).assert_existing_objects_matched()
            if source == "all":
                compressor.load(folder / "all.1")
        fit(model, optimizer)
        kept = digest_of(residuals_of(compressor).values())
        ends.append([weights_of(model).tolist(), kept])
        compressor.close()
    return {"ends": ends}


def ours_among_callbacks(name: str) -> dict[str, Any]:
    """Ranks that start apart and log their own losses, with a rate that warms up."""
    model = make_built_model(seed=10 + hvd.rank())
    rates: list[float] = []

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    compressor = Compression.topk(model, name=name, **FEW)
    model.compile(DistributedOptimizer(momentum(), compression=compressor), "mse")
    told = model.fit(
        *data_of_rank(),
        batch_size=2,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2),
            Note(),
        ],
    ).history
    compressor.close()
    slots = [v.numpy() for v in model.optimizer.variables]
    return {
        "weights": weights_of(model).tolist(),
        "optimizer": digest_of(slots),
        "loss": told["loss"],
        "lr": told["lr"],
        "rates": rates,
    }


def tape(name: str) -> dict[str, Any]:
    """Keras 3 variables as sources of the tape, in groups, with one that is local."""
    draw = np.random.default_rng(hvd.rank())
    variables = [keras.Variable(np.ones((3, 4), "f4"), name=f"part{i}") for i in range(4)]
    given = [draw.normal(size=(3, 4)).astype("f4") for _ in variables]
    compressor = Compression.topk(variables[:3], density=1.0, name=name, **SPARSE_ONLY)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as plain:
            loss = linear_loss(variables, given)()
        ours = DistributedGradientTape(plain, compression=compressor, groups=[variables[1:3]])
        ours.register_local_source(variables[3])
        return ours.gradient(loss, variables)

    seen = [np.asarray(each) for each in step()]
    wanted = [np.asarray(hvd.allreduce(g, name=f"{name}.{i}")) for i, g in enumerate(given[:3])]
    wanted.append(given[3] / hvd.size())
    sent = compressor.stats()["sparse_steps"]
    compressor.close()
    apart = [float(np.abs(a - b).max()) for a, b in zip(seen, wanted)]
    return {"difference": max(apart), "sparse_steps": sent}


def mixed(call: Any) -> Any:
    """Return the same, under mixed_float16."""

    def under_policy() -> Any:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return call()
        finally:
            keras.config.set_dtype_policy("float32")

    return under_policy


def refused(name: str) -> dict[str, Any]:
    def compressor(model: Any = None, **options: Any) -> Any:
        model = make_built_model() if model is None else model
        return Compression.topk(model, name=name, **FEW, **options)

    def distribute(optimizer: Any, **options: Any) -> Any:
        return DistributedOptimizer(optimizer, compression=compressor(), **options)

    def fit_with(make: Any, **options: Any) -> None:
        model = make_built_model()
        fit(model, make(compressor(model)), **options)

    def other_optimizer() -> None:
        model = make_built_model()
        made = compressor(model, optimizer=momentum())
        fit(model, DistributedOptimizer(momentum(), compression=made))

    def around(made: Any) -> Any:
        return DistributedOptimizer(momentum(), compression=made)

    class Other(keras.optimizers.SGD):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            for gradient, variable in zip(grads, trainable_variables):
                variable.assign_sub(gradient)

    calls = {
        "horovods_wrapper": lambda: HorovodsOptimizer(momentum(), compression=compressor()),
        "hvd_tensorflow": lambda: hvd.DistributedOptimizer(momentum(), compression=compressor()),
        "twice": lambda: distribute(distribute(momentum())),
        "a_name": lambda: distribute("adam"),
        "passes": lambda: distribute(momentum(), backward_passes_per_step=2),
        "scaled_by_hand": lambda: distribute(
            keras.optimizers.LossScaleOptimizer(distribute(momentum()))
        ),
        "scaled_by_compile": mixed(lambda: fit_with(around)),
        "xla": lambda: fit_with(around, jit_compile=True),
        "another_optimizer": other_optimizer,
        "two_groups": lambda: DistributedOptimizer(
            momentum(), compression=compressor(groups="planned"), groups=2
        ),
        "elastic_state": lambda: TensorFlowKerasState(
            make_built_model(), momentum(), compressor=compressor()
        ),
        "elastic_unbuilt": lambda: KerasState(make_model(), momentum(), compressor=compressor()),
        "elastic_no_optimizer": lambda: KerasState(make_built_model(), compressor=compressor()),
        "elastic_a_name": lambda: KerasState(make_built_model(), "sgd", compressor=compressor()),
        "apply_of_its_own": lambda: fit_with(
            lambda made: DistributedOptimizer(Other(0.1), compression=made)
        ),
    }
    return {key: caught(call) for key, call in calls.items()}


def documented(_: str, block: Any) -> dict[str, Any]:
    """A block of the documentation, which makes a compressor and fits."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(32)])
    model.build((None, 32))
    data = np.random.RandomState(hvd.rank()).standard_normal((64, 32)).astype("f4")
    names: dict[str, Any] = {"model": model, "inputs": data, "targets": data, "epochs": 2}
    names["total_steps"] = 4
    exec(compile(block.text, block.name, "exec"), names)
    sparse_steps = names["compression"].stats()["sparse_steps"]
    names["compression"].close()
    return {"sparse_steps": sparse_steps, "weights": weights_of(model).tolist()}


muon = partial(keras.optimizers.Muon, 0.05, exclude_layers=["second"], adam_lr_ratio=0.5)
adamw = partial(keras.optimizers.AdamW, 0.01, weight_decay=0.1)
nesterov = partial(momentum, nesterov=True)
dense = {"min_numel": 10**6}
LAWS: dict[str, dict[str, Any]] = {
    "average": {},
    "sum_eager": {"op": hvd.Sum, "given": "callable", "execution": {"run_eagerly": True}},
    "predivide_four_steps": {
        "given": "list",
        "gradient_predivide_factor": 2.0,
        "execution": {"steps_per_execution": 4},
    },
    "two_groups": {"grouping": "number"},
    "groups_of_variables": {"grouping": "lists"},
    "dense": {"is_dense": True},
    "loss_scale_factor": {
        "make": partial(momentum, loss_scale_factor=64.0),
        "make_by_hand": momentum,
    },
    "accumulated_and_clipped": {
        "make": partial(momentum, gradient_accumulation_steps=2, clipnorm=0.3),
        "make_by_hand": partial(momentum, clipnorm=0.3),
        "passes": 2,
    },
}
HANDED: dict[str, dict[str, Any]] = {
    "sgd": {"make": momentum, **SPARSE_ONLY},
    "accumulated": {"make": momentum, "passes": 2, **SPARSE_ONLY},
    "accumulated_scaled": {"make": momentum, "passes": 2, "is_scaled": True, **SPARSE_ONLY},
    "pausing": {"make": nesterov, "momenta": PAUSING, **SPARSE_ONLY},
    "nesterov": {"make": nesterov, **dense},
    "adam": {"make": lambda: keras.optimizers.Adam(falling(0.01)), **dense},
    "adamw": {"make": adamw, **dense},
    "nadam": {"make": partial(keras.optimizers.Nadam, 0.01), **dense},
    "muon": {"make": muon, **dense},
}
MOMENTS: dict[str, dict[str, Any]] = {
    "compressed": {"make": momentum, "save": by_store, **SPARSE_ONLY},
    "sgd": {"make": momentum, "save": by_checkpoint, **dense},
    "adam": {"make": adam, "save": by_checkpoint, **dense},
    "adamw": {"make": adamw, "save": by_store, **dense},
}
schedules = keras.optimizers.schedules
TRAINED: dict[str, dict[str, Any]] = {
    "muon": {"make": partial(muon, rms_rate=0.1)},
    "sgd": {"make": lambda: keras.optimizers.SGD(falling(0.05), momentum=0.9)},
    "along_rate": {
        "make": lambda: keras.optimizers.Adam(schedules.CosineDecay(0.02, 80)),
        "steps": 80,
    },
    "adam": {"make": adam},
    "auto": {"method": "auto", "make": adam, "trial_steps": 1, "hands_over": False},
    "auto_handed": {"method": "auto", "make": adam, "trial_steps": 1, "hands_over": True},
}
SCALED: dict[str, dict[str, Any]] = {
    "scaling": {"hands_over": False},
    "scaling_handed_over": {"hands_over": True},
    "scaling_accumulated": {"hands_over": True, "gradient_accumulation_steps": 2},
}


def cases_of(process_sets: dict[str, Any], folder: Path) -> Cases:
    everybody = process_sets["all"]
    members = {"two_groups": process_sets.get("one_left_out", everybody)}
    tables = {
        "law": (LAWS, beside_average_by_hand),
        "handed": (HANDED, handed_over),
        "moments": (MOMENTS, partial(moments, train=train)),
        "trains": (TRAINED, partial(trained, distribute=DistributedOptimizer)),
    }
    cases = Cases()
    for kind, (table, run) in tables.items():
        for name, options in table.items():
            cases[f"{kind}_{name}"] = partial(run, **options)
            if kind == "law":
                whose = members.get(name, everybody)
                cases[f"{kind}_{name}"] = partial(run, process_set=whose, **options)
    for name, options in SCALED.items():
        cases[name] = partial(loss_scaling, **options)
    cases["saved_sgd"] = partial(saved_model, make=momentum, folder=folder)
    cases["saved_adam"] = partial(saved_model, make=adam, folder=folder)
    cases["checkpoint"] = partial(checkpoint, folder=folder)
    for case in (ours_among_callbacks, tape, planned, refused):
        cases[case.__name__] = case
    for number, block in enumerate(blocks_for("keras3")):
        cases[f"documented_{number}"] = partial(documented, block=block)
    return cases


if __name__ == "__main__":
    assert BATCHES % 4 == 0
    fw.run(cases_of(fw.begin(int(sys.argv[2])), Path(sys.argv[3])))
