"""Worker for one rank: input that is refused.

Argument: "2" or "3" for the version of Keras, or "graphs" for a program that does not use
TensorFlow 2's eager execution.
"""

import os
import sys
from functools import partial

os.environ["TF_USE_LEGACY_KERAS"] = "0" if sys.argv[1] == "3" else "1"

import tensorflow as tf
from _common import SPARSE_ONLY, caught, run_cases
from _keras_models import DistributedOptimizer, fit, make_built_model, weights_of
from _tensorflow_cases import Compression, begin, hvd, linear_loss, tape_gradients


def weight(name="weight", dtype=tf.float32):
    return tf.Variable(tf.ones((40, 40), dtype), name=name)


def made_with(params, **options):
    def make():
        compressor = Compression.topk(params(), **{"density": 0.1, **options})
        compressor.resolve()
        compressor.close()

    return caught(make)


def used_with(params, method=Compression.topk, **options):
    def train():
        variables = list(params())
        compressor = method(variables, density=0.1, **options)
        try:
            tape_gradients(
                linear_loss(variables, [tf.ones(v.shape) for v in variables]), variables, compressor
            )
        finally:
            compressor.close()

    return caught(train)


def made_in_a_trace():
    def train():
        variables = [weight()]
        loss = linear_loss(variables, [tf.ones(v.shape) for v in variables])
        make = partial(Compression.ldte_bs, variables, density=0.1)
        tf.function(lambda: tape_gradients(loss, variables, make()))()

    return caught(train)


def in_replicas(count):
    def train():
        strategy = tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(count)])
        variables = [weight()]
        compressor = Compression.topk(variables, density=0.1)
        loss = linear_loss(variables, [tf.ones((40, 40))])
        try:
            strategy.run(tf.function(lambda: tape_gradients(loss, variables, compressor)))
        finally:
            compressor.close()

    return caught(train)


def variable_of_1():
    with tf.Graph().as_default():
        return tf.compat.v1.get_variable("old", (40, 40))


def made_in_a_graph_of_1():
    with tf.Graph().as_default():
        return made_with(lambda: [tf.compat.v1.get_variable("old", (40, 40))])


def used_in_a_graph_of_1():
    compressor = Compression.topk([weight()], density=0.1)
    compressor.resolve()
    try:
        with tf.Graph().as_default():
            return caught(lambda: hvd.allreduce(tf.ones((40, 40)), compression=compressor))
    finally:
        compressor.close()


def fit_of_one_rank(make):
    """Compare fits with and without ``optimizer=`` where Horovod calls no compressor."""

    def train():
        ends = []
        for is_handed in (False, True):
            model, optimizer = make_built_model(), make()
            handed = {"optimizer": optimizer} if is_handed else {}
            compressor = Compression.topk(model, density=0.1, **handed, **SPARSE_ONLY)
            fit(model, DistributedOptimizer(optimizer, compression=compressor))
            compressor.close()
            ends.append(weights_of(model))
        assert (ends[0] == ends[1]).all()

    return caught(train)


def fit_of_the_last_worker(make):
    """Compare the fits in an elastic run that has lost its other workers."""
    os.environ["HOROVOD_ELASTIC"] = "1"
    try:
        return fit_of_one_rank(make)
    finally:
        del os.environ["HOROVOD_ELASTIC"]


ACCEPTED = "nothing was raised"
OF_GRAPH = "UnsupportedInput; graph of TensorFlow 1; hvd.DistributedGradientTape"
OF_VARIABLE = "UnsupportedInput; 'old:0' is in a graph of TensorFlow 1; without tf.Graph"
ALONE = "InvalidOption; select_over is 'group'; 'weight:0' alone; give groups"
EVERYTHING = {"compress_1d": True, "min_numel": 1}
made, used = partial(partial, made_with), partial(partial, used_with)


def one_weight():
    return [weight()]


def sgd(optimizers=tf.keras.optimizers):
    return optimizers.SGD(0.05, momentum=0.9)


KERAS_2 = {
    "a_string": (made(lambda: "weight"), "InvalidOption; 'weight'; model.trainable_variables"),
    "an_empty_list": (made(list), "InvalidOption; no variables; callable"),
    "an_array_in_the_list": (
        made(lambda: [weight(), weight().numpy()]),
        "InvalidOption; no tf.Variable; model.trainable_variables",
    ),
    "one_variable_twice": (made(lambda: 2 * [weight()]), "InvalidOption; 'weight:0'; once"),
    "an_integer_variable": (
        made(lambda: [weight("counter", tf.int32)]),
        "UnsupportedInput; 'counter:0'; int32; leave it out",
    ),
    "an_unknown_shape": (
        made(lambda: [tf.Variable(tf.ones((2, 2)), shape=(None, 2), name="loose")]),
        "UnsupportedInput; 'loose:0'; (None, 2); unknown dimensions",
    ),
    "a_graph_of_tensorflow_1": (made_in_a_graph_of_1, OF_GRAPH),
    "a_step_in_a_graph_of_tensorflow_1": (used_in_a_graph_of_1, OF_GRAPH),
    "a_variable_of_tensorflow_1": (made(lambda: [variable_of_1()]), OF_VARIABLE),
    "an_unbuilt_model_that_is_asked": (
        lambda: caught(Compression.topk(tf.keras.Sequential(), density=0.1).stats),
        "InvalidOption; no variables; model.build(); have not yet been created",
    ),
    "an_unbuilt_module_that_is_asked": (
        lambda: caught(Compression.topk(tf.Module(), density=0.1).stats),
        "InvalidOption; no variables; model.build()",
    ),
    "a_name_of_no_operation": (
        made(one_weight, name="half,density=0.01"),
        "InvalidOption; 'half,density=0.01'; letters, digits",
    ),
    "groups": (
        made(one_weight, groups=2),
        "InvalidOption; groups is 2; give groups to hvd.DistributedGradientTape",
    ),
    "mgs_without_groups": (used(one_weight, Compression.mgs, **EVERYTHING), ALONE),
    "densities_that_hide": (
        made(one_weight, density="hiding:300"),
        "InvalidOption; density is 'hiding'; hvd_sparse.torch and hvd_sparse.ddp; "
        "compressor.hiding.densities",
    ),
    "a_compressor_made_while_traced": (
        made_in_a_trace,
        "InvalidOption; inside a tf.function; Make it outside",
    ),
    "two_replicas_of_tf_distribute": (
        lambda: in_replicas(2),
        "UnsupportedInput; 2 replicas of MirroredStrategy; one process for each device",
    ),
    "one_replica_of_tf_distribute": (lambda: in_replicas(1), ACCEPTED),
    "a_name_of_all_letters": (used(one_weight, name="A_z.0/b-"), ACCEPTED),
    "sgd_of_the_last_worker": (lambda: fit_of_the_last_worker(sgd), ACCEPTED),
    "legacy_sgd_of_the_last_worker": (
        lambda: fit_of_the_last_worker(lambda: sgd(tf.keras.optimizers.legacy)),
        ACCEPTED,
    ),
    "an_integer_that_is_not_trained": (
        made(lambda: [weight(), tf.Variable(3, trainable=False, name="counter")]),
        ACCEPTED,
    ),
}


KERAS_3 = {
    "adam_of_one_rank": (lambda: fit_of_one_rank(tf.keras.optimizers.Adam), ACCEPTED),
    "sgd_of_the_last_worker": KERAS_2["sgd_of_the_last_worker"],
}
WITHOUT_EAGER = f"{OF_GRAPH}; disable_eager_execution; fp16"
GRAPHS = {"a_variable": (made(one_weight), WITHOUT_EAGER)}


def check(call, words, _):
    said = call()
    assert all(word in said for word in words.split("; ")), said


if __name__ == "__main__":
    begin(1)
    if sys.argv[1] == "graphs":
        tf.compat.v1.disable_eager_execution()
    chosen = {"2": KERAS_2, "3": KERAS_3, "graphs": GRAPHS}[sys.argv[1]]
    cases = {name: partial(check, call, words) for name, (call, words) in chosen.items()}
    run_cases(cases, hvd.rank(), lambda: None)
