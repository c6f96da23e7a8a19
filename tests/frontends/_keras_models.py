"""A small model, a rank's data and Horovod's optimizer, for Keras 2 and Keras 3."""

from contextlib import contextmanager

import numpy as np
import tensorflow as tf
from _tensorflow_cases import Compression, hvd

keras = tf.keras
IS_3 = hasattr(keras, "Variable")
if IS_3:
    from hvd_sparse.keras import DistributedOptimizer
else:
    from horovod.tensorflow.keras import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
BATCHES, BATCH_SIZE, FEATURES = 8, 2, 6
RATE = 0.05


def make_model(seed=1):
    """Return a model that is not built yet. It is the same in every run, and uses tanh, because
    ReLU would give gradients that are exactly zero."""
    first = _dense(5, seed, name="first", activation="tanh")
    return keras.Sequential([first, _dense(3, seed + 1, name="second")])


def _dense(units, seed, **options):
    start = keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)
    return keras.layers.Dense(units, kernel_initializer=start, **options)


def make_built_model(seed=1):
    model = make_model(seed)
    model.build((None, FEATURES))
    return model


def data_of_rank():
    draw = np.random.RandomState(hvd.rank())
    count = BATCHES * BATCH_SIZE
    inputs, targets = draw.standard_normal((count, FEATURES)), draw.standard_normal((count, 3))
    return inputs.astype("f4"), targets.astype("f4")


def weights_of(model):
    return np.concatenate([np.asarray(w, np.float64).ravel() for w in model.get_weights()])


def fit(model, optimizer, callbacks=(), **options):
    model.compile(optimizer, "mse", **options)
    return go_on(model, callbacks)


def go_on(model, callbacks=(), epochs=1):
    options = {"batch_size": BATCH_SIZE, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(*data_of_rank(), callbacks=list(callbacks), **options).history


@contextmanager
def compressing(model, name, optimizer, *, is_ours, **options):
    """Give a compressor of all entries that gets the optimizer; or, for the training with which it
    is compared, none."""
    if not is_ours:
        yield hvd.Compression.none
        return
    compressor = Compression.topk(model, density=1.0, name=name, optimizer=optimizer, **options)
    try:
        yield compressor
    finally:
        compressor.close()


@contextmanager
def mixed_float16():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy("float32")


def count_steps(optimizer, model):
    gradients = [tf.ones(variable.shape) * 0.3 for variable in model.trainable_variables]
    for _ in range(3):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def train_by_hand(
    model,
    optimizer,
    name,
    op=hvd.Average,
    process_set=hvd.global_process_set,
    passes=1,
    momenta=None,
):
    """Train like ``fit`` of Keras 3, but reduce gradients one by one; return the weights.

    passes : number of batches whose gradients are averaged before a step momenta : new momenta of
    the optimizer, by the number of the batch
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
            if process_set.included():
                sums = [
                    hvd.allreduce(each, op=op, name=f"{name}.{i}", process_set=process_set)
                    for i, each in enumerate(sums)
                ]
            optimizer.apply(sums, model.trainable_variables)
            sums = [0.0] * len(sums)
    return weights_of(model)
