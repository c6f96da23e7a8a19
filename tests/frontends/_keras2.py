"""Cases that only Keras 2 has: tapes, slices, legacy optimizers, and messages about optimizers."""

import tempfile
from functools import partial

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, Heard, caught
from _keras_models import (
    RATE,
    DistributedOptimizer,
    count_steps,
    data_of_rank,
    fit,
    go_on,
    make_built_model,
    weights_of,
)
from _tensorflow_cases import Compression, hvd

keras = tf.keras
cases = Cases()
plain = partial(keras.optimizers.SGD, RATE)
sgd = partial(plain, momentum=0.9)
legacy = partial(keras.optimizers.legacy.SGD, RATE, momentum=0.9)
adam = partial(keras.optimizers.Adam, RATE)


def train(model, optimizer, compression):
    inputs, targets = data_of_rank()

    @tf.function
    def step(batch, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch) - wanted))
        distributed = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = distributed.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for first in range(0, len(inputs), 2):
        step(inputs[first : first + 2], targets[first : first + 2])


def embedding(name, *, is_sparse):
    start = keras.initializers.RandomUniform(-0.5, 0.5, seed=3)
    inputs = np.random.RandomState(hvd.rank()).randint(0, 12, (16, 2))
    ends = []
    for compressed in (False, True):
        layers = [
            keras.layers.Embedding(12, 4, embeddings_initializer=start, input_length=2),
            keras.layers.Flatten(),
        ]
        model, optimizer = keras.Sequential(layers), sgd()
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
def saved(name):
    told = {}
    for kind, make in {"new": sgd, "legacy": legacy}.items():
        model, optimizer = make_built_model(), make(nesterov=True)
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


@cases
def exported(name):
    """Compare a training that saves a SavedModel after its first epoch with one that does not."""
    ends, is_same = [], False
    for exports in (False, True):
        model = make_built_model()
        compressor = Compression.topk(model, density=0.5, name=f"{name}.{exports}")
        fit(model, DistributedOptimizer(sgd(), compression=compressor))
        if exports:
            with tempfile.TemporaryDirectory() as folder:
                model.save(folder)
                again = keras.models.load_model(folder, compile=False)
            is_same = np.array_equal(weights_of(model), weights_of(again))
        go_on(model)
        compressor.close()
        ends.append(weights_of(model))
    return {"difference": float(np.abs(ends[0] - ends[1]).max()), "is_same": is_same}


def heard_while(call, word):
    with Heard() as said:
        call()
    return [text for text in said if word in text]


@cases
def warnings_of_accuracy(name):
    def train_rarely(make, hands_over, density=0.01):
        model, optimizer = make_built_model(), make()
        options = {"optimizer": optimizer} if hands_over else {}
        compressor = Compression.topk(model, density=density, name=name, min_numel=10, **options)
        fit(model, DistributedOptimizer(optimizer, compression=compressor))
        compressor.close()

    def said_of(hands_over, *makers, **options):
        train = partial(train_rarely, hands_over=hands_over, **options)
        told = [heard_while(partial(train, make), "accuracy") for make in makers]
        return [text for texts in told for text in texts]

    strangers = (keras.optimizers.legacy.Adam, keras.optimizers.RMSprop)
    return {
        "kept": said_of(False, sgd, adam, *strangers),
        "kept, by name": said_of(False, sgd, density={"*": 0.01}),
        "handed over": said_of(True, *strangers),
        "at ease": said_of(False, plain) + said_of(True, plain, sgd, adam),
    }


@cases
def moments_that_horovod_leaves(name):
    said = {}
    for kind, make in {"new": sgd, "legacy": legacy, "adam": adam}.items():
        for steps in (0, 3):
            model, optimizer = make_built_model(), make()
            if steps:
                count_steps(optimizer, model)
            compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
            distributed = DistributedOptimizer(optimizer, compression=compressor)
            said[f"{kind}, {steps} steps"] = heard_while(
                partial(fit, model, distributed), "moments"
            )
            compressor.close()
    return said


def wrapped_again(name, *, make, **options):
    """Return how far training differs from dense training if Horovod wraps the optimizer a second
    time. This makes another copy with other variables, which trains at another learning rate."""
    ends = []
    for is_handed in (False, True):
        model, optimizer, compression = make_built_model(), make(), hvd.Compression.none
        if is_handed:
            compression = Compression.topk(
                model, density=1.0, name=name, optimizer=optimizer, **options
            )
        for rate in (RATE, RATE / 4):
            distributed = DistributedOptimizer(optimizer, compression=compression)
            distributed.learning_rate.assign(rate)
            fit(model, distributed)
        if is_handed:
            compression.close()
        ends.append(weights_of(model))
    return {"difference": float(np.abs(ends[0] - ends[1]).max())}


cases["again_sgd"] = partial(wrapped_again, make=sgd, **SPARSE_ONLY)
cases["again_adam"] = partial(wrapped_again, make=adam, min_numel=10**6)


@cases
def resumed_by_a_new_counter(name):
    """Return how far a run with two batches in each step differs from one that is continued with a
    new model and only the compressor's state. In the continued run, the optimizer counts steps from
    zero again."""
    weights, state, ends = None, None, []
    for is_resumed in (False, True):
        model, optimizer = make_built_model(), adam()
        compressor = Compression.topk(
            model, density=1.0, name=name, optimizer=optimizer, **SPARSE_ONLY
        )
        distributed = DistributedOptimizer(
            optimizer, compression=compressor, backward_passes_per_step=2
        )
        if is_resumed:
            model.set_weights(weights)
            compressor.load_state_dict(state)
        else:
            fit(model, distributed)
            weights, state = model.get_weights(), compressor.state_dict()
        fit(model, distributed)
        compressor.close()
        ends.append(weights_of(model))
    return float(np.abs(ends[0] - ends[1]).max())


@cases
def mixed_precision(name):
    """Return how far SGD changes the weights if ``compile`` creates the loss scaler, and how
    much the result differs if the compressor computes the updates. The second batch of one rank
    has Inf."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    ends = []
    try:
        for is_handed in (False, True):
            layers = [keras.layers.Dense(n, "tanh", kernel_initializer="ones") for n in (5, 3)]
            model, optimizer, compression = keras.Sequential(layers), sgd(), hvd.Compression.none
            model.build((None, 4))
            start = weights_of(model)
            if is_handed:
                compression = Compression.topk(
                    model, density=1.0, name=name, optimizer=optimizer, **SPARSE_ONLY
                )
            model.compile(DistributedOptimizer(optimizer, compression=compression), "mse")
            inputs = np.random.RandomState(hvd.rank()).standard_normal((32, 4)).astype("f4")
            inputs[5 * hvd.rank()] = np.inf if hvd.rank() else 0.0
            model.fit(inputs, np.ones((32, 3)), batch_size=4, shuffle=False, verbose=0)
            if is_handed:
                compression.close()
            ends.append(weights_of(model))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    moved, apart = (float(np.abs(ends[0] - each).max()) for each in (start, ends[1]))
    return {"moved": moved, "apart": apart}


def not_applied(name, kind):
    model, inputs = make_built_model(), data_of_rank()[0]
    make = partial(keras.optimizers.AdamW, weight_decay=0.1) if kind == "decayed" else sgd
    optimizer = make()
    compressor = Compression.topk(model, density=0.5, name=name, min_numel=10, optimizer=optimizer)

    def run():
        for _ in range(6):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(inputs)))
            distributed = hvd.DistributedGradientTape(tape, compression=compressor)
            gradients = distributed.gradient(loss, model.trainable_variables)
            if kind == "clipped":
                gradients = tf.clip_by_global_norm(gradients, 0.01)[0]
            if kind != "thrown_away":
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    told = heard_while(run, "gradients")
    compressor.close()
    return told


for kind in ("applied", "decayed", "clipped", "thrown_away"):
    cases[f"results_{kind}"] = partial(not_applied, kind=kind)


@cases
def refused(name):
    def made(optimizer):
        return caught(
            lambda: Compression.topk(
                make_built_model(), density=0.1, name=name, optimizer=optimizer
            ).close()
        )

    def fitted(optimizer, handed=None, goes_through=True, **options):
        model = make_built_model()
        compressor = Compression.topk(
            model, density=0.1, name=name, optimizer=handed, **options, **SPARSE_ONLY
        )
        if goes_through:
            optimizer = DistributedOptimizer(optimizer, compression=compressor)
        said = caught(fit, model, optimizer)
        compressor.close()
        return said

    def fitted_again():
        model, first = make_built_model(), sgd()
        compressor = Compression.topk(model, density=0.1, name=name, optimizer=first, **SPARSE_ONLY)
        fit(model, DistributedOptimizer(first, compression=compressor))
        said = caught(fit, model, DistributedOptimizer(sgd(), compression=compressor))
        compressor.close()
        return said

    alone, clips = sgd(), "=1.0, and would clip"
    return [
        [made(adam(clipnorm=1.0)), f"clipnorm{clips} Adam's updates"],
        [made(sgd(clipnorm=1.0)), f"the optimizer has clipnorm{clips} velocities"],
        [made(sgd(global_clipnorm=1.0)), f"global_clipnorm{clips} velocities"],
        [made(legacy(clipvalue=1.0)), f"clipvalue{clips} velocities"],
        [
            fitted(plain(clipvalue=1.0), memory="momentum_correction"),
            f"clipvalue{clips} velocities",
        ],
        [fitted(sgd(), handed=sgd()), "give the same object to both"],
        [fitted_again(), "give the same object to both"],
        [
            fitted(alone, handed=alone, goes_through=False),
            "came through no compressor, and the SGD's work was handed over to one",
        ],
    ]
