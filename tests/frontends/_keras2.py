"""Cases that only Keras 2 has: tapes, slices, legacy optimizers, and messages about optimizers."""

import tempfile
from functools import partial

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, Heard, caught, check_refused
from _keras_models import (
    RATE,
    DistributedOptimizer,
    compressing,
    count_steps,
    data_of_rank,
    fit,
    go_on,
    make_built_model,
    mixed_float16,
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


@cases
def embedding_as_slices_is_refused(name):
    layers = [keras.layers.Embedding(12, 4, input_length=2), keras.layers.Flatten()]
    model, optimizer = keras.Sequential(layers), sgd()
    model.build((None, 2))
    with compressing(model, name, optimizer, is_ours=True, **SPARSE_ONLY) as compression:
        model.compile(DistributedOptimizer(optimizer, compression=compression), "mse")
        said = caught(model.fit, np.zeros((4, 2)), np.ones((4, 8), "f4"), 4, 1, 0)
    assert "InvalidOption" in said and "sparse_as_dense=True" in said, said


@cases
def a_saved_model_keeps_its_momentum(name):
    for make in (sgd, legacy):
        model, optimizer = make_built_model(), make(nesterov=True)
        compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
        fit(model, DistributedOptimizer(optimizer, compression=compressor))
        compressor.close()
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.h5")
            again = keras.models.load_model(f"{folder}/model.h5").optimizer
        config = again.get_config()
        assert abs(config["momentum"] - 0.9) < 1e-6 and config["nesterov"], config
        assert int(again.iterations.numpy()) == 8
        assert len(again.variables()) == 5  # the counter of steps, and a slot for each tensor


@cases
def a_saved_model_can_be_written_between_two_epochs(name):
    """Compare a training that saves a SavedModel after its first epoch with one that does not."""
    ends = []
    for exports in (False, True):
        model = make_built_model()
        compressor = Compression.topk(model, density=0.5, name=f"{name}.{exports}")
        fit(model, DistributedOptimizer(sgd(), compression=compressor))
        if exports:
            with tempfile.TemporaryDirectory() as folder:
                model.save(folder)
                again = keras.models.load_model(folder, compile=False)
            ends += [weights_of(model), weights_of(again)]
        go_on(model)
        compressor.close()
        ends.append(weights_of(model))
    without, before, saved, after = ends
    assert (before == saved).all() and (without == after).all()


def heard_while(call, word):
    with Heard() as said:
        call()
    return [text for text in said if word in text]


@cases
def accuracy_at_stake_is_told_once_with_the_remedy(name):
    def train_rarely(make, hands_over):
        model, optimizer = make_built_model(), make()
        options = {"optimizer": optimizer} if hands_over else {}
        compressor = Compression.topk(model, density=0.01, name=name, min_numel=10, **options)
        fit(model, DistributedOptimizer(optimizer, compression=compressor))
        compressor.close()

    def said_of(hands_over, *makers):
        told = [heard_while(partial(train_rarely, each, hands_over), "accuracy") for each in makers]
        return [text for texts in told for text in texts]

    strangers = (keras.optimizers.legacy.Adam, keras.optimizers.RMSprop)
    kept, handed_over = said_of(False, sgd, adam, *strangers), said_of(True, *strangers)
    at_ease = said_of(False, plain) + said_of(True, plain, sgd, adam)
    assert ["optimizer=optimizer" in text for text in kept] == [True] * 4, kept
    told = ["no memory can do this optimizer's work" in text for text in handed_over]
    assert told == [True] * 2 and at_ease == [], (handed_over, at_ease)


@cases
def moments_that_horovods_own_optimizer_lacks_are_told(name):
    said = {0: [], 3: []}
    for make in (sgd, legacy, adam):
        for steps in (0, 3):
            model, optimizer = make_built_model(), make()
            if steps:
                count_steps(optimizer, model)
            compressor = Compression.topk(model, density=0.5, name=name, optimizer=optimizer)
            distributed = DistributedOptimizer(optimizer, compression=compressor)
            said[steps].append(heard_while(partial(fit, model, distributed), "moments"))
            compressor.close()
    assert said[0] == [[], [], []], said
    for (text,) in said[3]:
        assert "had moments of 3 steps" in text and "compressor.load" in text, text


def wrapped_again(name, *, make, **options):
    """Compare with dense training if Horovod wraps the optimizer a second time. This makes another
    copy with other variables, which trains at another learning rate."""
    ends = []
    for is_ours in (False, True):
        model, optimizer = make_built_model(), make()
        with compressing(model, name, optimizer, is_ours=is_ours, **options) as compression:
            for rate in (RATE, RATE / 4):
                distributed = DistributedOptimizer(optimizer, compression=compression)
                distributed.learning_rate.assign(rate)
                fit(model, distributed)
        ends.append(weights_of(model))
    assert np.abs(ends[0] - ends[1]).max() < 1e-5


cases["again_sgd"] = partial(wrapped_again, make=sgd, **SPARSE_ONLY)
cases["again_adam"] = partial(wrapped_again, make=adam, min_numel=10**6)


@cases
def resumed_by_a_new_counter(name):
    """Compare a run with two batches in each step with one that is continued with a new model and
    only the compressor's state. In the continued run, the optimizer counts steps from zero
    again."""
    weights, state, ends = None, None, []
    for is_resumed in (False, True):
        model, optimizer = make_built_model(), adam()
        with compressing(model, name, optimizer, is_ours=True, **SPARSE_ONLY) as compressor:
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
        ends.append(weights_of(model))
    assert np.abs(ends[0] - ends[1]).max() < 1e-6


@cases
@mixed_float16()
def the_scaler_that_compile_makes_is_found(name):
    """The second batch of one rank has Inf."""
    ends = []
    for is_ours in (False, True):
        layers = [keras.layers.Dense(n, "tanh", kernel_initializer="ones") for n in (5, 3)]
        model, optimizer = keras.Sequential(layers), sgd()
        model.build((None, 4))
        start = weights_of(model)
        inputs = np.random.RandomState(hvd.rank()).standard_normal((32, 4)).astype("f4")
        inputs[5 * hvd.rank()] = np.inf if hvd.rank() else 0.0
        with compressing(model, name, optimizer, is_ours=is_ours, **SPARSE_ONLY) as compression:
            model.compile(DistributedOptimizer(optimizer, compression=compression), "mse")
            model.fit(inputs, np.ones((32, 3)), batch_size=4, shuffle=False, verbose=0)
        ends.append(weights_of(model))
    moved, apart = (np.abs(ends[0] - each).max() for each in (start, ends[1]))
    assert moved > 0.01 and apart < 1e-3 * moved, (moved, apart)


WORDS = {
    "applied": None,
    "decayed": None,
    "clipped": ("gradients were multiplied by about 0.", "clip_norm"),
    "thrown_away": ("plain tf.GradientTape", "before the tape", "learning rate is 0"),
}
"""By what a program does with a tape's gradients: the words of the only warning."""


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
    assert len(told) == (WORDS[kind] is not None), told
    assert all(word in told[0] for word in WORDS[kind] or ()), told


for kind in WORDS:
    cases[f"results_{kind}"] = partial(not_applied, kind=kind)


@cases
def refused(name):
    def made(optimizer):
        options = {"density": 0.1, "name": name, "optimizer": optimizer}
        return caught(partial(Compression.topk, make_built_model(), **options))

    def fitted(*trained, handed=None, goes_through=True, **options):
        model = make_built_model()
        compressor = Compression.topk(
            model, density=0.1, name=name, optimizer=handed, **options, **SPARSE_ONLY
        )
        for optimizer in trained:
            if goes_through:
                optimizer = DistributedOptimizer(optimizer, compression=compressor)
            said = caught(fit, model, optimizer)
        compressor.close()
        return said

    alone, first, clips = sgd(), sgd(), "=1.0, and would clip"
    told = [
        [made(adam(clipnorm=1.0)), f"clipnorm{clips} Adam's updates"],
        [made(sgd(global_clipnorm=1.0)), f"global_clipnorm{clips} velocities"],
        [made(legacy(clipvalue=1.0)), f"clipvalue{clips} velocities"],
        [
            fitted(plain(clipvalue=1.0), memory="momentum_correction"),
            f"clipvalue{clips} velocities",
        ],
        [fitted(sgd(), handed=sgd()), "give the same object to both"],
        [fitted(first, sgd(), handed=first), "give the same object to both"],
        [
            fitted(alone, handed=alone, goes_through=False),
            "came through no compressor, and the SGD's work was handed over to one",
        ],
    ]
    check_refused(told)
