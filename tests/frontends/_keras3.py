"""Cases that only Keras 3 has: our own wrapper, callbacks and states in place of Horovod's."""

import tempfile
import warnings
import zipfile
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, caught, check_refused
from _keras_models import (
    RATE,
    DistributedOptimizer,
    data_of_rank,
    fit,
    go_on,
    make_built_model,
    make_model,
    mixed_float16,
    weights_of,
)
from _tensorflow_cases import Compression, are_alike, digest_of, hvd, linear_loss
from blocks import blocks_for
from horovod.tensorflow.keras import DistributedOptimizer as HorovodsOptimizer

from hvd_sparse.keras import DistributedGradientTape, PartialDistributedGradientTape, callbacks
from hvd_sparse.keras.elastic import KerasState
from hvd_sparse.tensorflow import CompressorState, SaveCompressor
from hvd_sparse.tensorflow.elastic import TensorFlowKerasState, TensorFlowState

FEW = {"density": 0.2, "min_numel": 1, "allow_dense": False}
momentum = partial(keras.optimizers.SGD, RATE, momentum=0.9)
cases = Cases()


def train(model, optimizer, compression):
    if getattr(model, "optimizer", None) is not optimizer:
        model.compile(DistributedOptimizer(optimizer, compression=compression), "mse")
    go_on(model)


class Groups(keras.callbacks.Callback):
    def __init__(self, compressor):
        super().__init__()
        self.compressor, self.seen = compressor, []

    def on_train_batch_begin(self, batch, logs=None):
        groups = self.compressor.groups
        self.seen.append(groups and sorted(map(len, groups)))


@cases
def fit_with_planned_groups_changes_no_bit(name):
    ends = []
    for groups in (None, "planned"):
        model = make_built_model()
        compressor = Compression.ldte_bs(model, groups=groups, name=f"{name}.{groups}", **FEW)
        watching = Groups(compressor)
        ours = [callbacks.PlanGroupsCallback(compressor), watching] if groups else []
        model.compile(DistributedOptimizer(momentum(), compression=compressor), "mse")
        for _ in range(3):
            go_on(model, ours)
        ends.append(weights_of(model).tolist())
        compressor.close()
    seen = watching.seen
    assert are_alike([ends, seen], name)
    assert ends[0] == ends[1]
    assert seen[:8] == 8 * [None] and len(seen) == 24, seen
    assert sum(seen[8]) == 2 and set(map(tuple, seen[8:])) <= {(1, 1), (2,)}, seen


@mixed_float16()
def loss_scaling(name, *, hands_over, left_out=(4, 9), **inner_options):
    """With Inf on one rank, all ranks leave a step out.

    left_out : batches that change no weight: some are infinite, others are only accumulated
    """
    model, inner = make_built_model(), momentum(**inner_options)
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
    store = {}
    optimizer.save_own_variables(store)
    plain = keras.optimizers.LossScaleOptimizer.from_config(optimizer.get_config())
    plain.build(model.trainable_variables)
    plain.load_own_variables(store)
    optimizer.load_own_variables(store)
    scales += [float(each.dynamic_scale.numpy()) for each in (plain, optimizer)]
    assert is_kept == [step in left_out for step in range(12)], is_kept
    exponents = (10, 10, 11, 11, 10, 10, 10, 11, 11, 10, 10, 10, 10, 10)  # and loaded, twice
    assert scales == [2.0**exponent for exponent in exponents], scales
    assert len(store) == len(plain.variables)
    assert are_alike(weights_of(model).tolist(), name)


cases["scaling"] = partial(loss_scaling, hands_over=False)
cases["scaling_handed_over"] = partial(loss_scaling, hands_over=True)
twice = {"left_out": (0, 2, 4, 5, 7, 9, 10), "gradient_accumulation_steps": 2}
cases["scaling_accumulated"] = partial(loss_scaling, hands_over=True, **twice)


def saved_model(name, *, make, momentum=None):
    """A saved model loads without us, and goes on bit for bit."""
    model, optimizer, path = make_built_model(), make(), f"{tempfile.mkdtemp()}/model.keras"
    compressor = Compression.topk(model, name=name, optimizer=optimizer, **FEW)
    fit(model, DistributedOptimizer(optimizer, compression=compressor))
    model.save(path)
    state = compressor.state_dict()
    with zipfile.ZipFile(path) as archive:
        assert "hvd_sparse" not in archive.read("config.json").decode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns where variables do not fit
        loaded = keras.models.load_model(path)
    again = loaded.optimizer
    assert type(again) is type(make())
    assert again.get_config().get("momentum") == momentum
    assert (weights_of(loaded) == weights_of(model)).all()
    store = {}
    optimizer.save_own_variables(store)
    optimizer._iterations.assign(0)
    optimizer.load_own_variables(store)
    assert int(again.iterations.numpy()) == int(optimizer.iterations.numpy()) == 8
    go_on(model)
    compressor.close()
    second = Compression.topk(loaded, name=name, optimizer=again, **FEW)
    second.load_state_dict(state)
    fit(loaded, DistributedOptimizer(again, compression=second))
    second.close()
    assert (weights_of(model) == weights_of(loaded)).all()


cases["saved_sgd"] = partial(saved_model, make=momentum, momentum=0.9)
cases["saved_adam"] = partial(saved_model, make=partial(keras.optimizers.Adam, 0.01))


@cases
def checkpoint(name):
    """Go on from the rank's own and from everybody's checkpoint as without one."""
    ends, folder = [], Path(hvd.broadcast_object(tempfile.mkdtemp(), 0, name=f"{name}.folder"))
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
        tensors = compressor.state_dict()["tensors"].values()
        kept = digest_of(each["arrays"]["residual"] for each in tensors)
        ends.append([weights_of(model).tolist(), kept])
        compressor.close()
    assert ends[0] == ends[1] == ends[2]


@cases
def callbacks_of_ours_do_what_horovods_cannot(name):
    model = make_built_model(seed=10 + hvd.rank())
    if hvd.rank() == 0:  # in a loaded model, and in a second optimizer, Keras uses other names
        path = f"{tempfile.mkdtemp()}/model.keras"
        model.save(path)
        model, _ = keras.models.load_model(path), momentum()
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    compressor = Compression.topk(model, name=name, **FEW)
    model.compile(DistributedOptimizer(momentum(), compression=compressor), "mse")
    ours = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(RATE, warmup_epochs=2),
        Note(),
    ]
    told = go_on(model, ours, epochs=3)
    compressor.close()
    slots = [v.numpy() for v in model.optimizer.variables]
    assert are_alike([weights_of(model).tolist(), digest_of(slots), told["loss"]], name)
    ranks = hvd.size()
    expected = [RATE * (1 + (ranks - 1) * min(n / 16, 1)) / ranks for n in range(1, 25)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    np.testing.assert_allclose(told["lr"], [expected[7], RATE, RATE], rtol=1e-6)
    logs = {"f1": np.array([hvd.rank(), 1.0], np.float32), "loss": hvd.rank()}
    callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    mean = (ranks - 1) / 2
    assert logs["f1"].tolist() == [mean, 1.0] and logs["loss"] == mean


@cases
def tape(name):
    draw = np.random.default_rng(hvd.rank())
    variables = [keras.Variable(np.ones((3, 4), "f4"), name=f"part{i}") for i in range(4)]
    given = [draw.normal(size=(3, 4)).astype("f4") for _ in variables]
    compressor = Compression.topk(variables[:3], density=1.0, name=name, **SPARSE_ONLY)

    @tf.function
    def step():
        with tf.GradientTape() as plain:
            loss = linear_loss(variables, given)()
        ours = DistributedGradientTape(plain, compression=compressor, groups=[variables[1:3]])
        ours.register_local_source(variables[3])
        local, shared = ours.get_local_and_global_gradients(loss, variables)
        told.append([variable for variable, _ in shared + local])
        return [gradient for _, gradient in shared + local]

    told = []
    seen = [np.asarray(each) for each in step()]
    assert [id(v) for v in told[0]] == [id(v) for v in variables]
    wanted = [np.asarray(hvd.allreduce(g, name=f"{name}.{i}")) for i, g in enumerate(given[:3])]
    wanted.append(given[3] / hvd.size())
    sent = compressor.stats()["sparse_steps"]
    compressor.close()
    assert max(np.abs(a - b).max() for a, b in zip(seen, wanted)) <= 1e-6
    assert sent == 3


@cases
def local_layers(name):
    """A tape and an optimizer do not average the first layer, whose weights then differ."""
    ends = {}
    for way in ("tape", "optimizer"):
        model = make_built_model()
        local, shared = model.layers[0], model.layers[1].trainable_variables
        equal = callbacks.BroadcastGlobalVariablesCallback(0)
        if hvd.rank():
            model.set_weights([weight + 1 for weight in model.get_weights()])
        for variable in local.trainable_variables:
            equal.register_local_var(variable)
        before = [weight.copy() for weight in model.get_weights()]
        equal.set_model(model)
        model.compile(keras.optimizers.SGD(RATE), "mse")
        equal.on_train_batch_end(0)
        kept = [np.array_equal(a, b) for a, b in zip(before, model.get_weights())]
        assert kept == [True, True, hvd.rank() == 0, hvd.rank() == 0], kept
        compressor = Compression.topk(shared, density=1.0, name=f"{name}.{way}", **SPARSE_ONLY)
        given = [tf.fill(v.shape, 1.0 + hvd.rank()) for v in model.trainable_variables]
        before = model.get_weights()
        if way == "optimizer":
            optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), compression=compressor)
            for variable in local.trainable_variables:
                optimizer.register_local_var(variable)
            optimizer.apply(given, model.trainable_variables)
        else:
            with tf.GradientTape() as plain:
                loss = linear_loss(model.trainable_variables, given)()
            ours = PartialDistributedGradientTape(plain, local_layers=local, compression=compressor)
            for gradient, variable in zip(
                ours.gradient(loss, model.trainable_variables), model.trainable_variables
            ):
                variable.assign_sub(gradient)
        moved = [(a - b).ravel()[0] for a, b in zip(before, model.get_weights())]
        ends[way] = [float(each) for each in moved]
        compressor.close()
    alone, mean = (1.0 + hvd.rank()) / hvd.size(), (1.0 + hvd.size()) / 2
    for moved in ends.values():
        np.testing.assert_allclose(moved, [alone, alone, mean, mean], rtol=1e-5)


@cases
def two_networks_of_equal_shapes_share_an_optimizer_as_without_compression(name):
    """Horovod's graph for the gradients of the first network serves the second, too."""
    ends = []
    for is_ours in (False, True):
        networks = [make_built_model(seed) for seed in (1, 7)]
        variables = [v for network in networks for v in network.trainable_variables]
        sgd, compressor = momentum(), hvd.Compression.none
        sgd.build(variables)
        if is_ours:
            options = {"density": 1.0, "optimizer": sgd, **SPARSE_ONLY}
            compressor = Compression.topk(variables, name=name, **options)
        optimizer = DistributedOptimizer(sgd, compression=compressor)

        @tf.function
        def train_step(inputs, targets):
            for network in networks:  # noqa: B023
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((network(inputs) - targets) ** 2)
                own = network.trainable_variables
                optimizer.apply(tape.gradient(loss, own), own)  # noqa: B023

        for _ in range(3):
            train_step(*(each[:4] for each in data_of_rank()))
        ends.append(np.concatenate([weights_of(network) for network in networks]))
    assert compressor.stats()["sparse_steps"] > 0
    compressor.close()
    np.testing.assert_allclose(*ends, rtol=1e-5, atol=1e-6)


@cases
def a_commit_of_variables_has_the_moments_of_the_last_step(name):
    """If one rank is left, Keras goes on with them."""
    model, adam = make_built_model(), keras.optimizers.Adam(RATE)
    adam.build(model.trainable_variables)
    compressor = Compression.topk(model, optimizer=adam, name=name, **FEW)
    state = TensorFlowState([*model.variables, *adam.variables], compressor=compressor)
    fit(model, DistributedOptimizer(adam, compression=compressor))
    state.save()
    moments = [np.asarray(each) for each in adam._velocities]
    compressor.close()
    assert all(each.any() for each in moments)


@cases
def a_failure_of_one_rank_is_named_also_if_values_of_float64_are_summed(name):
    variable = tf.Variable(np.zeros((40, 30)), name="wide")
    options = {"density": 0.1, "on_nonfinite": "raise", **SPARSE_ONLY}
    compressor = Compression.scalecom([variable], name=name, **options)
    spoiled = np.full((40, 30), np.nan if hvd.rank() == 0 else 1.0)

    @tf.function
    def reduce():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * spoiled)
        tape = DistributedGradientTape(tape, compression=compressor)
        return tape.gradient(loss, [variable])

    words = caught(reduce)
    compressor.close()
    assert "failed on rank 0: NonFiniteGradient: tensor 'wide" in words, words


@cases
def inf_in_a_local_layer_of_one_rank_skips_the_step_on_all_ranks(name):
    model = make_built_model()
    variables = model.trainable_variables
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    compressor = Compression.topk(variables[2:], density=1.0, name=name, **SPARSE_ONLY)
    optimizer = DistributedOptimizer(scaling, compression=compressor)
    for variable in variables[:2]:
        optimizer.register_local_var(variable)
    is_last = hvd.rank() == hvd.size() - 1
    given = [tf.fill(v.shape, np.inf if is_last and v is variables[0] else 1.0) for v in variables]
    before = weights_of(model)
    optimizer.apply(given, variables)
    compressor.close()
    assert (weights_of(model) == before).all()
    assert float(optimizer.dynamic_scale.numpy()) == 2.0


@cases
def refused(name):
    def compressor(model=None, **options):
        return Compression.topk(model or make_built_model(), name=name, **FEW, **options)

    def distribute(optimizer=None, made=None, **options):
        optimizer, made = optimizer or momentum(), made or compressor()
        return DistributedOptimizer(optimizer, compression=made, **options)

    def fitted(optimizer=None, handed=None, **options):
        model = make_built_model()
        fit(model, distribute(optimizer, compressor(model, optimizer=handed)), **options)

    class Other(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            for gradient, variable in zip(grads, trainable_variables):
                variable.assign_sub(gradient)

    def state(*parts, kind=KerasState):
        kind(*parts, compressor=compressor())

    built, scaled = make_built_model, keras.optimizers.LossScaleOptimizer
    ours, around = "UnsupportedInput; hvd_sparse.keras", "put DistributedOptimizer around"
    calls = {
        lambda: HorovodsOptimizer(momentum(), compression=compressor()):
            f"{ours}.DistributedOptimizer; Keras 3; TF_USE_LEGACY_KERAS=1",
        lambda: hvd.DistributedOptimizer(momentum(), compression=compressor()):
            f"{ours}.DistributedOptimizer",
        lambda: distribute(distribute()): "distributed already",
        lambda: distribute("adam"): "str is no optimizer of Keras 3",
        lambda: distribute(backward_passes_per_step=2): "gradient_accumulation_steps=2",
        lambda: distribute(scaled(distribute())): around,
        mixed_float16()(fitted): f"UnsupportedInput; {around}",
        lambda: fitted(jit_compile=True): "UnsupportedInput; jit_compile=False",
        lambda: fitted(handed=momentum()): "give the same object to both",
        lambda: distribute(made=compressor(groups="planned"), groups=2): "leave one of the two out",
        lambda: state(built(), momentum(), kind=TensorFlowKerasState):
            f"{ours}.elastic.KerasState",
        lambda: state(make_model(), momentum()): "model.build(input_shape)",
        lambda: state(built()): "optimizer=",
        lambda: state(built(), "sgd"): "str is no optimizer of Keras 3",
        lambda: fitted(Other(0.1)): "UnsupportedInput; not averaged; update_step()",
    }  # fmt: skip
    check_refused([[caught(call), words] for call, words in calls.items()])


def documented(name, block):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(32)])
    model.build((None, 32))
    data = np.random.RandomState(hvd.rank()).standard_normal((64, 32)).astype("f4")
    names = {"model": model, "inputs": data, "targets": data, "epochs": 2}
    names["total_steps"] = 4
    exec(compile(block.text, block.name, "exec"), names)
    sparse_steps = names["compression"].stats()["sparse_steps"]
    names["compression"].close()
    assert sparse_steps > 0
    assert are_alike(weights_of(model).tolist(), name)


for number, block in enumerate(blocks_for("keras3")):
    cases[f"documented_{number}"] = partial(documented, block=block)
