"""Law 3 with Keras' ``fit``, compared with dense Horovod, and the identity of gradients."""

from functools import cache, partial

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, reduction_of
from _keras_models import (
    BATCHES,
    FEATURES,
    IS_3,
    RATE,
    DistributedOptimizer,
    fit,
    make_built_model,
    make_model,
    params_of,
    setting_of_groups,
    train_by_hand,
    weights_of,
)
from _tensorflow_cases import Compression, check_everything_was_sent, hvd, linear_loss, variables_of
from _tensorflow_identity import SHAPES, check, dense, swapped, telling

OPTIMIZERS = {"new": tf.keras.optimizers.SGD}
if IS_3:
    BY_HAND = {"new": tf.keras.optimizers.SGD, "legacy": partial(OPTIMIZERS["new"], clipnorm=0.3)}
    OPTIMIZERS["legacy"] = partial(BY_HAND["legacy"], loss_scale_factor=64.0)
else:
    OPTIMIZERS["legacy"] = tf.keras.optimizers.legacy.SGD


TOLERANCE = 1e-6
"""Of weights around 1 after eight steps at rate 0.05: a few roundings of float32 a step."""


@cache
def weights_trained_alone():
    model = make_model()
    fit(model, OPTIMIZERS["new"](RATE))
    return weights_of(model)


def compare_keras(name, setting, process_sets):
    process_set = process_sets[setting.place.members if hvd.size() > 2 else "all"]
    if IS_3 and hvd.rank() == 0:
        OPTIMIZERS["new"](RATE)  # from now on, Keras numbers this rank's optimizers otherwise
    model = make_built_model() if setting.given == "list" else make_model()
    compressor = getattr(Compression, setting.method)(
        params_of(model, setting.given),
        density=1.0,
        process_set=process_set,
        name=name,
        **SPARSE_ONLY,
    )
    sparse = _fit_setting(model, setting, compressor, process_set)
    dense = _fit_setting(make_model(), setting, hvd.Compression.none, process_set)
    by_hand = dense
    if IS_3:  # where Horovod has nothing to compare with
        op = hvd.Sum if setting.reduction == "sum" else hvd.Average
        optimizer = BY_HAND[setting.optimizer](RATE)
        by_hand = train_by_hand(make_model(), optimizer, name, op, process_set, setting.passes)
    is_reduced = process_set.included() and process_set.size() > 1
    steps = is_reduced * BATCHES // setting.passes
    gradients = steps * len(model.trainable_variables)
    check_everything_was_sent(compressor, gradients, steps * sparse.size)
    difference = max(np.abs(each - by_hand).max() for each in (sparse, dense))
    assert difference <= (TOLERANCE if is_reduced else 0), difference
    effect = np.abs(weights_trained_alone() - dense).max()
    assert effect > 1000 * TOLERANCE or not is_reduced, "the comparison proves nothing"


def _fit_setting(model, setting, compression, process_set):
    options = reduction_of(hvd, setting.reduction)
    if setting.grouping == "lists":
        model.build((None, FEATURES))
    options["groups"] = setting_of_groups(model, setting.grouping)
    passes = {} if setting.passes == 1 else {"gradient_accumulation_steps": setting.passes}
    if not IS_3:
        options["backward_passes_per_step"], passes = setting.passes, {}
    optimizer = OPTIMIZERS[setting.optimizer](RATE, **passes)
    optimizer = DistributedOptimizer(
        optimizer, compression=compression, process_set=process_set, **options
    )
    execution = {
        "graph": {},
        "eager": {"run_eagerly": True},
        "four_steps": {"steps_per_execution": 4},
    }
    fit(model, optimizer, **execution[setting.execution])
    return weights_of(model)


# -- whose gradient is it, where optimizers and models could be taken for one another --------------

IDENTITY_IN_KERAS = Cases()


@IDENTITY_IN_KERAS
def two_keras_optimizers_in_one_graph(name):
    groups = [variables_of(SHAPES), variables_of(SHAPES)]
    compressor = dense(groups[0] + groups[1], name)
    optimizers = [
        DistributedOptimizer(OPTIMIZERS["new"](1.0), compression=compressor) for _ in groups
    ]
    for optimizer, variables in zip(optimizers, groups):
        optimizer.build(variables)

    @tf.function
    def step():
        for number, (optimizer, variables) in enumerate(zip(optimizers, groups)):
            with tf.GradientTape() as tape:
                value = linear_loss(variables, telling(variables, 1 + 10 * number))()
            optimizer.minimize(value, variables, tape=tape)

    for _ in range(3):
        step()
    moved = [[(1.0 - v) / 3 for v in variables] for variables in groups]
    check(swapped(moved[0]) + swapped(moved[1], 11), 6 * len(SHAPES), compressor)


@IDENTITY_IN_KERAS
def keras_optimizer_with_a_local_layer(name):
    ends, compressor = [], None
    for is_ours in (False, True):
        model, compression = make_built_model(), hvd.Compression.none
        if is_ours:
            compression = compressor = dense(model.layers[1].trainable_variables, name)
        optimizer = DistributedOptimizer(OPTIMIZERS["new"](0.05), compression=compression)
        for variable in model.layers[0].trainable_variables:
            optimizer.register_local_var(variable)
        fit(model, optimizer)
        ends.append(weights_of(model))
    wrong = np.flatnonzero(np.abs(ends[0] - ends[1]) > 1e-5).tolist()
    check(wrong, BATCHES * 2, compressor)
