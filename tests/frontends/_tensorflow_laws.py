"""Cases that only TensorFlow has: a timeline, the names of collectives in traces, and
``Compression.auto`` with tapes and Keras."""

import os
import tempfile
from collections import Counter
from functools import partial

import numpy as np
import tensorflow as tf
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted, caught
from _keras_models import BATCHES, RATE, DistributedOptimizer, fit, go_on, make_built_model
from _laws import SHAPES, AutoBooks
from _tensorflow_cases import (
    Books,
    Compression,
    digest_of,
    hvd,
    last_rank,
    linear_loss,
    tape_gradients,
    variables_of,
)

from hvd_sparse.cli.timeline import read_trace
from hvd_sparse.tracing import SETTING, path_of

LAWS, AUTO = Cases(), Cases()


def horovod_operations(traced):
    library = traced.graph.as_graph_def().library
    nodes = [node for function in library.function for node in function.node_def]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


@LAWS
def timeline(name):
    os.environ[SETTING] = f"{tempfile.mkdtemp()}/ours.json"
    try:
        books = Books(SHAPES, "ldte_bs", name=name)
        for step in range(20):
            books.take_step(books.gradients(step))
        books.compressor.close()
        events = read_trace(path_of(os.environ[SETTING], hvd.rank()))
    finally:
        del os.environ[SETTING]
    return Counter(event["name"] for event in events if event["ph"] == "X")


@LAWS
def names_of_groups_are_those_of_other_ranks_and_traces(name):
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
    return names


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
    return names


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
    told = hvd.allgather_object(digests, name=f"{name}.alike")
    is_alike = all(each == digests for each in told)
    return {"alike": is_alike, "steps_left": len(compressor._policy.trial.left)}


def auto_leaves_alone_who_is_not_in_its_process_set(name, process_set):
    script, how = Scripted(["sparse", "dense", "dense", "fp16"]), {"process_set": process_set}
    books = AutoBooks(name, script, how=how)
    steps = [digest_of(books.take_auto_step(step)) for step in range(4)]
    books.compressor.close()
    is_member = process_set.included()
    told = hvd.allgather_object((is_member, steps), name=f"{name}.steps")
    return {
        "is_member": is_member,
        "left": len(books.compressor._policy.trial.left),
        "alike": len({repr(steps) for is_member, steps in told if is_member}) == 1,
    }


def train(name, groups=None):
    """Train a model by ``fit``; return a digest of its weights, the losses, and the number of steps
    that are left in the script."""
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
    left = len(compressor._policy.trial.left)
    return {"digest": digest_of(model.get_weights()), "losses": losses, "left": left}


AUTO["auto_trains_by_keras"] = train
AUTO["auto_trains_by_keras_in_groups"] = partial(train, groups=2)


@AUTO
def auto_refuses_what_it_cannot(name):
    variables = variables_of(SHAPES.values())
    make = partial(Compression.auto, variables, **SPARSE_ONLY)
    bare = make(name=f"{name}.bare")
    other = make(name=f"{name}.other", trial_steps=3 if last_rank() else 5)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES.values()])
    found = {
        "bare": caught(lambda: hvd.allreduce(variables[0], compression=bare)),
        "other": caught(lambda: tape_gradients(loss, variables, other)),
    }
    bare.close()
    other.close()
    return found
