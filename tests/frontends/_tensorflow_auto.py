"""Cases of ``Compression.auto`` that only TensorFlow has: tapes, Keras, and refusals."""

from functools import partial

import numpy as np
import tensorflow as tf
from _auto import AutoBooks
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted, caught
from _keras_models import BATCHES, RATE, DistributedOptimizer, fit, go_on, make_built_model
from _laws import SHAPES
from _tensorflow_cases import Compression, digest_of, hvd, linear_loss, tape_gradients, variables_of

AUTO = Cases()


@AUTO
def auto_gradients_are_horovods_on_every_way(name):
    settings = {"average": {"op": hvd.Average}, "sum": {"op": hvd.Sum}}
    settings["predivide"] = {"op": hvd.Average, "gradient_predivide_factor": 2.0}
    apart, whole = [], 0
    for label, options in settings.items():
        books = AutoBooks(
            f"{name}.{label}",
            Scripted(["sparse", "dense", "dense", "fp16", "sparse"]),
            of_auto={"density": 1.0},
            **options,
        )
        for step in range(5):
            ours = books.take_auto_step(step)
            variables = list(books.variables.values())
            loss = linear_loss(variables, list(books.gradients(step).values()))
            theirs = tape_gradients(loss, variables, hvd.Compression.none, **options)
            pairs = [(a, np.asarray(b)) for a, b in zip(ours, theirs)]
            apart.append(max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs))
        whole += books.compressor.stats()["entries_sent"]
        books.compressor.close()
    return {"apart": apart, "entries_sent": whole}


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
    books = AutoBooks(name, Scripted(["sparse", "dense", "dense", "fp16"]), process_set=process_set)
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
    last = hvd.rank() == hvd.size() - 1
    other = make(name=f"{name}.other", trial_steps=3 if last else 5)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES.values()])
    found = {
        "bare": caught(lambda: hvd.allreduce(variables[0], compression=bare)),
        "other": caught(lambda: tape_gradients(loss, variables, other)),
    }
    bare.close()
    other.close()
    return found
