"""Keras optimizers that are passed to the compressor, and law 3 with Keras' ``fit``. Worker, for
Keras 3. Arguments: "keras3", and the number of ranks."""

import sys
import tempfile
from functools import cache, partial

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, reduction_of
from _framework import fw
from _keras_models import (
    BATCHES,
    FEATURES,
    IS_3,
    RATE,
    DistributedOptimizer,
    compressing,
    count_steps,
    fit,
    make_built_model,
    make_model,
    train_by_hand,
    weights_of,
)
from _tensorflow_cases import Compression, are_alike, check_everything_was_sent, hvd
from _tensorflow_settings import KERAS_SETTINGS, settings_of

if IS_3:
    import _keras3 as own
else:
    import _keras2 as own

keras = tf.keras
DENSE = {"min_numel": 10**6}
PAUSING = {2: 0.5, 4: 0.0, 6: 0.9}


def falling(rate):
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [1, 2, 4], [rate, rate / 4, 0.0, rate / 2]
    )


class Changing(keras.callbacks.Callback):
    def __init__(self, momenta):
        super().__init__()
        self.momenta = momenta

    def on_train_batch_begin(self, batch, logs=None):
        if batch in self.momenta:
            optimizer = self.model.optimizer
            if isinstance(optimizer.momentum, float):
                optimizer.momentum = self.momenta[batch]
            else:
                optimizer.momentum.assign(self.momenta[batch])


def handed_over(
    name,
    *,
    make,
    passes=1,
    momenta=None,
    eagerly=None,
    by_tape=False,
    is_mean=False,
    around=lambda optimizer: optimizer,
    **options,
):
    """Compare training in which the memory replaces the optimizer with training by the optimizer
    itself.

    passes : number of batches that are added up; in Keras 2, each counts as a step of the optimizer
    is_mean : Horovod divides the sum by the number of batches, after the reduction around :
    function that wraps the optimizer
    """
    start, model, plain = (make_built_model() for _ in range(3))
    handed = make(gradient_accumulation_steps=passes) if IS_3 and passes > 1 else make()
    compressor = Compression.topk(model, density=1.0, name=name, optimizer=handed, **options)
    fitting = {"run_eagerly": bool(momenta) if eagerly is None else eagerly}
    if momenta:
        fitting["callbacks"] = [Changing(momenta)]
    adding = {"backward_passes_per_step": passes, "average_aggregated_gradients": is_mean}
    adding = {} if IS_3 else adding

    def train(each, optimizer, compression):
        if by_tape:
            own.train(each, optimizer, compression)
        else:
            fit(each, DistributedOptimizer(optimizer, compression=compression, **adding), **fitting)

    if IS_3:
        train_by_hand(plain, make(), name, passes=passes, momenta=momenta)
    else:
        train(plain, make(), hvd.Compression.none)
    train(model, around(handed), compressor)
    sparse_steps = compressor.stats()["sparse_steps"]
    compressor.close()
    assert are_alike(weights_of(model).tolist(), name)
    moved = np.abs(weights_of(plain) - weights_of(start)).max()
    difference = np.abs(weights_of(plain) - weights_of(model)).max()
    assert difference < 2e-4 * moved, (difference, moved)
    assert (sparse_steps > 0) == (not name.endswith("never_compressed"))


def trained(name, *, make, method="ldte_bs", hands_over=True, **options):
    """Train at density 0.05."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.layers.Dense(24, activation="tanh"), keras.layers.Dense(4)])
    model.build((None, 12))
    optimizer = make()
    handed = {"optimizer": optimizer} if hands_over else {}
    compressor = getattr(Compression, method)(
        model, density=0.05, name=name, min_numel=20, allow_dense=False, **handed, **options
    )
    state_bytes = compressor.footprint()["state_bytes"]
    inputs = np.random.RandomState(hvd.rank()).standard_normal((160, 12)).astype("f4")
    model.compile(DistributedOptimizer(optimizer, compression=compressor), "mse")
    losses = model.fit(
        inputs, inputs[:, 4:8], batch_size=16, epochs=8, shuffle=False, verbose=0
    ).history["loss"]
    achieved = compressor.stats()["density_achieved"]
    states = compressor.step.transactions.settle_all().values()
    held = sum(2 * a.nbytes for state in states for a in state.memory.arrays().values())
    compressor.close()
    assert are_alike(weights_of(model).tolist(), name)
    assert state_bytes == held
    assert losses[-1] < losses[0], losses
    assert "steps" not in options or abs(achieved - 0.05) < 0.005, achieved


def save(model, optimizer, plain):
    parts = {} if IS_3 else {"model": model}  # an optimizer of Keras 3 has its model
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(optimizer=optimizer, **parts).write(f"{folder}/state")
        if IS_3:
            plain.build(model.trainable_variables)
        else:
            count_steps(plain, model)
        loaded = tf.train.Checkpoint(optimizer=plain, **parts).read(f"{folder}/state")
        loaded.assert_existing_objects_matched()


def moments(name, *, make, **options):
    """Compare with dense training in three cases: the optimizer already has moments when the
    compressor gets it; all its variables are set to zero; and plain Keras continues from a saved
    state."""
    ends = []
    for is_ours in (False, True):
        model, optimizer, plain = make_built_model(), make(), make()
        count_steps(optimizer, model)
        with compressing(model, name, optimizer, is_ours=is_ours, **options) as compressor:
            own.train(model, optimizer, compressor)
            found = [weights_of(model)]
            variables = optimizer.variables
            rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
            for variable in variables() if callable(variables) else variables:
                if variable is not rate:
                    variable.assign(tf.zeros(variable.shape, variable.dtype))
            own.train(model, optimizer, compressor)
            found.append(weights_of(model))
            save(model, optimizer, plain)
            own.train(model, plain, hvd.Compression.none)
            found.append(weights_of(model))
        ends.append(found)
    apart = [float(np.abs(dense - ours).max()) for dense, ours in zip(*ends)]
    if name.endswith("compressed"):  # what goes on is the velocity of this rank, not of all
        del apart[2]
    assert max(apart) < 1e-5, apart


cases = Cases()
optimizers = keras.optimizers
sgd = partial(optimizers.SGD, RATE, momentum=0.9)
nesterov = partial(sgd, nesterov=True)
adam = partial(optimizers.Adam, 0.01)
adamw = partial(optimizers.AdamW, 0.01, weight_decay=0.1)
HANDED = {
    "sgd": {"make": sgd},
    "accumulated": {"make": sgd, "passes": 2},
    "pausing": {"make": nesterov, "momenta": PAUSING},
    "nesterov_never_compressed": {"make": nesterov},
    "adam_never_compressed": {"make": lambda: optimizers.Adam(falling(0.01))},
    "adamw_never_compressed": {"make": adamw},
    # In a graph Keras 2 multiplies the product of momenta once a variable, not once a step.
    "nadam_never_compressed": {"make": partial(optimizers.Nadam, 0.01), "eagerly": not IS_3},
}
MOMENTS = {
    "compressed": {"make": sgd, **SPARSE_ONLY},
    "nesterov": {"make": nesterov, **DENSE},
    "adam": {"make": adam, **DENSE},
    "adamw": {"make": adamw, **DENSE},
}
if IS_3:
    muon = partial(optimizers.Muon, 0.05, exclude_layers=["second"], adam_lr_ratio=0.5)
    HANDED |= {
        "accumulated_scaled": {
            "make": sgd, "passes": 2, "around": optimizers.LossScaleOptimizer
        },
        "muon_never_compressed": {"make": muon},
    }  # fmt: skip
    alone = {"method": "auto", "make": adam, "trial_steps": 1}
    cosine = partial(optimizers.schedules.CosineDecay, 0.02, 80)
    TRAINED = {
        "muon": {"make": partial(muon, rms_rate=0.1)},
        "amsgrad": {"make": partial(adam, amsgrad=True)},
        "along_rate": {"make": lambda: optimizers.Adam(cosine()), "steps": 80},
        "auto": {**alone, "hands_over": False},
        "auto_handed": {**alone, "hands_over": True},
    }
    for label, options in TRAINED.items():
        cases[f"trains_{label}"] = partial(trained, **options)
else:

    class WithNote(optimizers.SGD):
        def __init__(self, *args, note="", **options):
            super().__init__(*args, **options)
            self.note = note

    legacy = partial(optimizers.legacy.SGD, RATE, momentum=0.9)
    HANDED |= {
        "sgd_by_tape": {"make": sgd, "by_tape": True},
        "derived": {"make": partial(WithNote, RATE, momentum=0.9)},
        "clipped_without_momentum": {"make": partial(optimizers.SGD, RATE, global_clipnorm=0.1)},
        "legacy": {"make": partial(legacy, nesterov=True)},
        "pausing_legacy": {"make": legacy, "momenta": PAUSING, "eagerly": False},
        "adam_of_two_batches_never_compressed": {"make": adam, "passes": 2},
        "adam_of_a_mean_of_batches_never_compressed": {"make": adam, "passes": 2, "is_mean": True},
        "adam_by_tape_never_compressed": {"make": adam, "by_tape": True},
        "early_epsilon_never_compressed": {"make": partial(adam, epsilon=0.1)},
        "amsgrad_never_compressed": {"make": partial(adam, amsgrad=True)},
    }
    MOMENTS["legacy"] = {"make": legacy, **DENSE}

for label, options in HANDED.items():
    chosen = DENSE if label.endswith("never_compressed") else SPARSE_ONLY
    cases[f"handed_{label}"] = partial(handed_over, **options, **chosen)
for label, options in MOMENTS.items():
    cases[f"moments_of_{label}"] = partial(moments, **options)
cases |= own.cases

# -- density 1 ------------------------------------------------------------------------------------

OPTIMIZERS = {"new": keras.optimizers.SGD}
if IS_3:
    BY_HAND = {"new": OPTIMIZERS["new"], "legacy": partial(OPTIMIZERS["new"], clipnorm=0.3)}
    OPTIMIZERS["legacy"] = partial(BY_HAND["legacy"], loss_scale_factor=64.0)
else:
    OPTIMIZERS["legacy"] = keras.optimizers.legacy.SGD
EXECUTIONS = {"graph": {}, "eager": {"run_eagerly": True}, "four_steps": {"steps_per_execution": 4}}
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
    params = {
        "unbuilt_model": model,
        "callable": lambda: model.trainable_variables,
        "list": model.trainable_variables if model.built else None,
    }[setting.given]
    compressor = getattr(Compression, setting.method)(
        params, density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
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
    options, groups = reduction_of(hvd, setting.reduction), {"single": None, "number": 2}
    if setting.grouping == "lists":
        model.build((None, FEATURES))
        first, second = (layer.trainable_variables for layer in model.layers)
        groups["lists"] = [second, first[:1]]
    options["groups"] = groups[setting.grouping]
    passes = {} if setting.passes == 1 else {"gradient_accumulation_steps": setting.passes}
    if not IS_3:
        options["backward_passes_per_step"], passes = setting.passes, {}
    optimizer = OPTIMIZERS[setting.optimizer](RATE, **passes)
    optimizer = DistributedOptimizer(
        optimizer, compression=compression, process_set=process_set, **options
    )
    fit(model, optimizer, **EXECUTIONS[setting.execution])
    return weights_of(model)


if __name__ == "__main__":  # Keras 3; Keras 2 is in the launch of tensorflow_training.py
    ranks = int(sys.argv[2])
    process_sets = fw.begin(ranks)
    settings = settings_of(KERAS_SETTINGS, ranks, "gloo" if ranks == 2 else "mpi")
    for label, setting in settings.items():
        made = partial(compare_keras, setting=setting, process_sets=process_sets)
        cases[f"keras-{label}"] = made
    fw.run(cases)
