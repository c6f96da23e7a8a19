"""Cases that only TensorFlow has: the names of collectives in traces, and ``Compression.auto`` with
tapes and Keras."""

from functools import partial

import numpy as np
import tensorflow as tf
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted, caught
from _keras_models import BATCHES, RATE, DistributedOptimizer, fit, go_on, make_built_model
from _laws import SHAPES, AutoBooks
from _tensorflow_cases import (
    Compression,
    are_alike,
    digest_of,
    hvd,
    last_rank,
    linear_loss,
    tape_gradients,
    variables_of,
)

LAWS, AUTO = Cases(), Cases()


def horovod_operations(traced):
    library = traced.graph.as_graph_def().library
    nodes = [node for function in library.function for node in function.node_def]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


@LAWS
def names_of_groups_are_those_of_other_ranks_and_traces(name):
    """Four gradients, in two groups: a reduction of carriers and an allgather each."""
    variables = variables_of([(40, 30), (50,), (8, 8, 3), (7, 9), (9, 5)])
    compressor = Compression.topk(variables, density=0.1, name=name, **SPARSE_ONLY)

    @tf.function(reduce_retracing=False)
    def step(batch):
        coefficients = [
            None if i == 1 else tf.reduce_mean(batch) * tf.ones(v.shape)
            for i, v in enumerate(variables)
        ]
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor, groups=2)

    names = []
    for size in (1, 2, 3):
        step(tf.ones(size))
        names.append(horovod_operations(step.get_concrete_function(tf.TensorSpec([size]))))
    compressor.close()
    assert are_alike(names, name)
    assert names == [names[0]] * 3 and len(names[0]) == 4, names


@LAWS
def names_that_elastic_runs_know(name):
    """Horovod recovers only from errors of operations with its own names."""
    (variable,), names = variables_of([(30, 20)]), []
    for exchange in ("allgather", "oktopk", "shared_index"):
        options = {"exchange": exchange, "name": f"{name}.{exchange}", **SPARSE_ONLY}
        compressor = Compression.topk([variable], density=0.1, **options)

        @tf.function
        def step(compressor=compressor):
            loss = linear_loss([variable], [tf.ones(variable.shape)])
            return tape_gradients(loss, [variable], compressor)

        names += horovod_operations(step.get_concrete_function())
        compressor.close()
    assert len(names) > 6
    known = ("HorovodAllreduce", "HorovodAllgather", "HorovodBroadcast")
    unknown = [each for each in names if not any(word in each for word in known)]
    assert unknown == [], unknown


@AUTO
def auto_of_two_tapes_in_one_function(name):
    """Two tapes use one compressor, and only the order of the program orders them."""
    variables = variables_of(((30, 20), (20, 30)))
    compressor = Compression.auto(
        variables, density=0.05, name=name, codec="index_value", **SPARSE_ONLY
    )
    compressor._policy.trial = Scripted(["sparse", "dense", "dense", "sparse", "fp16", "dense"] * 3)

    @tf.function
    def step(gradients):
        return [
            tape_gradients(linear_loss([v], [g]), [v], compressor)[0]
            for v, g in zip(variables, gradients)
        ]

    draw = np.random.RandomState(hvd.rank())
    digests = []
    for _ in range(9):
        gradients = [tf.constant(draw.standard_normal(v.shape), tf.float32) for v in variables]
        digests.append(digest_of(step(gradients)))
    compressor.close()
    assert are_alike(digests, name)
    assert compressor._policy.trial.left == []


def auto_leaves_alone_who_is_not_in_its_process_set(name, process_set):
    script, how = Scripted(["sparse", "dense", "dense", "fp16"]), {"process_set": process_set}
    books = AutoBooks(name, script, how=how)
    steps = [digest_of(books.take_auto_step(step)) for step in range(4)]
    books.compressor.close()
    is_member = process_set.included()
    told = hvd.allgather_object((is_member, steps), name=f"{name}.steps")
    assert len({repr(steps) for is_member, steps in told if is_member}) == 1
    assert len(books.compressor._policy.trial.left) == (0 if is_member else 4)


def train(name, groups=None):
    """Train a model by ``fit`` on all ways. Replicas learn and stay identical."""
    model = make_built_model()
    compressor = Compression.auto(
        model, density=0.1, name=name, min_numel=10, codec="index_value", allow_dense=False
    )
    compressor._policy.trial = Scripted(SCRIPT[: 2 * BATCHES])
    optimizer = DistributedOptimizer(
        tf.keras.optimizers.SGD(RATE), compression=compressor, groups=groups
    )
    losses = fit(model, optimizer, steps_per_execution=4)["loss"] + go_on(model)["loss"]
    compressor.close()
    assert are_alike(digest_of(model.get_weights()), name)
    assert losses[-1] < losses[0], losses
    assert compressor._policy.trial.left == [], "a step was no step, or one was two"


AUTO["auto_trains_by_keras"] = train
AUTO["auto_trains_by_keras_in_groups"] = partial(train, groups=2)


@AUTO
def auto_refuses_what_it_cannot(name):
    variables = variables_of(SHAPES.values())
    make = partial(Compression.auto, variables, **SPARSE_ONLY)
    bare = make(name=f"{name}.bare")
    other = make(name=f"{name}.other", trial_steps=3 if last_rank() else 5)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES.values()])
    without_tape = caught(lambda: hvd.allreduce(variables[0], compression=bare))
    differing = caught(lambda: tape_gradients(loss, variables, other))
    bare.close()
    other.close()
    assert without_tape.startswith("UnsupportedInput: "), without_tape
    assert "hvd.DistributedGradientTape" in without_tape, without_tape
    assert differing.startswith("RankMismatch: ") and '"trial_steps": 3' in differing, differing
