"""Worker: laws, identity of gradients, ``auto``, plans, optimizers of Keras 2, and density 1.0 with
tapes and Keras in the settings of this place (ranks and controller), compared with dense Horovod.
Arguments: the framework, the number of ranks, the controller, and names of cases; without names,
all cases of this place run."""

import sys
from functools import partial

import _laws
import keras_training
import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, ULP, reduction_of
from _tensorflow_cases import (
    Compression,
    begin,
    check_everything_was_sent,
    hvd,
    linear_loss,
    make_variables,
    run,
    summed,
)
from _tensorflow_laws import AUTO, IDENTITY, LAWS, auto_leaves_alone_who_is_not_in_its_process_set
from _tensorflow_settings import KERAS_SETTINGS, TAPE_SETTINGS, settings_of

STEPS = 2
SHAPES = {"first": (7, 5), "bias": (5,), "second": (5, 3)}
SPECIAL = {
    "some_without_gradient": {"unused": (5, 3), "unused_too": (5,)},
    "scalar_and_empty": {"scale": (), "empty": (0, 3)},
}


class Network:
    def __init__(self, setting):
        self.kind, dtype = setting.network, tf.as_dtype(setting.dtype)
        shapes = {**SHAPES, **SPECIAL.get(self.kind, {})}
        self.named = make_variables(shapes, [dtype] * len(shapes))
        self.registered = list(self.named.values())
        self.local_layers = []
        if self.kind == "local_layer":
            self.local_layers = [tf.keras.layers.Dense(5, dtype=dtype.name)]
            self.local_layers[0].build((None, 5))
        self.local = [v for layer in self.local_layers for v in layer.trainable_variables]
        self.variables = [*self.registered, *self.local]

    def draw(self, draw):
        own = []
        for v in self.variables:
            shape = tuple(v.shape)
            drawn = draw.randint(1, 9, shape) * draw.choice([-1, 1], shape)
            own.append(None if "unused" in v.name else tf.cast(drawn, v.dtype))
        return own

    def loss(self, own):
        if self.kind != "embedding":
            return linear_loss(self.variables, own)()
        table, words = self.variables[0], tf.range(SHAPES["first"][0])
        looked_up = tf.reduce_sum(tf.gather(table, words) * own[0])
        return tf.cast(looked_up, tf.float64) + linear_loss(self.variables[1:], own[1:])()


def compare_tape(name, setting, process_sets):
    process_set = process_sets[setting.place.members if hvd.size() > 2 else "all"]
    network = Network(setting)
    compressor = getattr(Compression, setting.method)(
        network.registered, density=1.0, process_set=process_set, name=name, **SPARSE_ONLY
    )
    sparse = _gradient_function(network, setting, compressor, process_set)
    draw = np.random.RandomState(100 + hvd.rank())
    errors, effects = [0.0], [0.0]
    for _ in range(STEPS):
        own = network.draw(draw)
        ours, wanted = sparse(own), _reference(network, setting, own, process_set)
        assert [g is None for g in ours] == [g is None for g in wanted]
        for given, right, mine in zip(ours, wanted, own):
            if given is None or not int(tf.size(given)):
                continue
            exact, alone, found = (np.asarray(g, np.float64) for g in (right, mine, given))
            unit = ULP[setting.dtype] * np.maximum(np.abs(exact), 1)
            errors.append(float((np.abs(found - exact) / unit).max()))
            effects.append(float((np.abs(alone - exact) / unit).max()))
            assert (given.dtype, given.shape) == (mine.dtype, mine.shape)
    sizes = [int(tf.size(v)) for v, g in zip(network.registered, own) if g is not None]
    if not (process_set.included() and process_set.size() > 1):
        check_everything_was_sent(compressor, 0, 0)
        # Horovod divides those of local layers everywhere.
        assert max(errors) <= int(setting.network == "local_layer"), max(errors)
        return
    check_everything_was_sent(compressor, STEPS * sum(map(bool, sizes)), STEPS * sum(sizes))
    # Two sums of n numbers, in any order and twice scaled, differ by n + 1 roundings of their
    # magnitudes at most.
    roundings = hvd.size() + 1
    assert max(errors) <= roundings, max(errors)
    assert max(effects) > 10 * roundings, "the comparison proves nothing"


def _gradient_function(network, setting, compression, process_set):
    options = reduction_of(hvd, setting.reduction)
    first, bias, second = network.registered[:3]
    lists = [[second, first], [bias]]
    options |= {"single": {}, "number": {"groups": 2}, "lists": {"groups": lists}}[setting.grouping]
    options |= {"process_set": process_set, "compression": compression, "sparse_as_dense": True}

    def gradients(own):
        with tf.GradientTape() as tape:
            value = network.loss(own)
        if network.local_layers:
            wrapped = hvd.PartialDistributedGradientTape(
                tape, local_layers=network.local_layers, **options
            )
        else:
            wrapped = hvd.DistributedGradientTape(tape, **options)
        return wrapped.gradient(value, network.variables)

    return tf.function(gradients) if setting.mode == "function" else gradients


def _reference(network, setting, own, process_set):
    """Return the results of dense Horovod. For 16 bits, which Horovod sums with large rounding
    errors, the sum is computed here."""
    if setting.dtype in ("float32", "float64"):
        return list(_gradient_function(network, setting, hvd.Compression.none, process_set)(own))
    reduced = []
    for i, (variable, gradient) in enumerate(zip(network.variables, own)):
        if gradient is not None and any(variable is v for v in network.local):
            reduced.append(gradient / process_set.size())  # also outside of the process set
        elif gradient is None or not process_set.included():
            reduced.append(gradient)
        else:
            total = summed(tf.cast(gradient, tf.float32), f"by_hand.{i}", process_set)
            divisor = 1 if setting.reduction == "sum" else process_set.size()
            reduced.append(tf.cast(tf.constant(total / divisor, tf.float32), gradient.dtype))
    return reduced


if __name__ == "__main__":
    ranks, controller = int(sys.argv[2]), sys.argv[3]
    process_sets = begin(ranks)
    cases = {}
    for kind, compare, settings in (
        ("tape", compare_tape, TAPE_SETTINGS),
        ("keras", keras_training.compare_keras, KERAS_SETTINGS),
    ):
        for name, setting in settings_of(settings, ranks, controller).items():
            made = partial(compare, setting=setting, process_sets=process_sets)
            cases[f"{kind}-{name}"] = made
    identity = {f"identity_{name}": case for name, case in IDENTITY.items()}
    if ranks > 1:
        cases |= {**_laws.cases, **LAWS}
    if ranks in (2, 3):
        members = process_sets.get("one_left_out", process_sets["all"])
        alone = partial(auto_leaves_alone_who_is_not_in_its_process_set, process_set=members)
        cases |= {**identity, **_laws.AUTO, **AUTO, **_laws.PLANNED}
        cases[alone.func.__name__] = alone
    if ranks == 2:
        cases |= keras_training.cases
    if ranks == 1:
        case = "identity_direct_allreduce_of_a_group"
        cases[case] = identity[case]
    run({name: cases[name] for name in sys.argv[4:] or cases})
