"""Cases that only TensorFlow has: whose gradient is it where gradients could be confused, the names
of collectives in traces, and ``Compression.auto`` with tapes and Keras."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted, caught
from _keras_models import BATCHES, RATE, DistributedOptimizer, fit, go_on, make_built_model
from _laws import AutoBooks
from _tensorflow_cases import (
    Compression,
    are_alike,
    check_everything_was_sent,
    digest_of,
    hvd,
    last_rank,
    linear_loss,
    tape_gradients,
    variables_of,
)

LAWS, AUTO, IDENTITY = Cases(), Cases(), Cases()
SHAPES = ((4, 3), (3,), (4, 3), (3,))
"""Two variables of each shape, so that their gradients could be confused."""


def dense(params, name):
    return Compression.ldte_bs(params, name=name, density=1.0, **SPARSE_ONLY)


def telling(variables, first=1):
    """Return coefficients of a linear loss: (first + i) * (rank + 1) for the i-th variable."""
    return [
        tf.fill(v.shape, float((first + i) * (hvd.rank() + 1))) for i, v in enumerate(variables)
    ]


def told(variables, compressor, first=1, **options):
    """Return the reduced gradients of variables, whose values identify them."""
    loss = linear_loss(variables, telling(variables, first))
    return tape_gradients(loss, variables, compressor, **options)


def swapped(gradients, first=1):
    """Return the positions of the gradients that differ from the average of their variable."""
    mean_rank = sum(range(1, hvd.size() + 1)) / hvd.size()
    wanted = [(first + i) * mean_rank for i in range(len(gradients))]
    return [
        i
        for i, (g, w) in enumerate(zip(gradients, wanted))
        if g is not None and not np.allclose(np.asarray(g), w)
    ]


def both_modes(step):
    return [step, tf.function(step)]


def check(wrong, gradients, *compressors):
    assert wrong == [], wrong
    for compressor in compressors:
        check_everything_was_sent(compressor, gradients)


def in_both_modes(name, step_of, shapes=SHAPES):
    """A step is taken twice eagerly and twice in a graph. ``step_of`` returns it."""
    variables = variables_of(shapes)
    compressor = dense(variables, name)
    step = step_of(variables, compressor)
    wrong = [i for run in both_modes(step) for _ in range(2) for i in swapped(run())]
    check(wrong, 4 * len(shapes), compressor)


def two_tapes_with_equal_names(name, is_shared):
    """The tapes have two compressors, or share one."""
    models = [variables_of(SHAPES), variables_of(SHAPES)]
    owned = [models[0] + models[1]] if is_shared else models
    ours = [dense(each, f"{name}.{number}") for number, each in enumerate(owned)]

    def step():
        return told(models[0], ours[0]), told(models[1], ours[-1], 11)

    wrong = []
    for run in both_modes(step):
        for _ in range(2):
            first, second = run()
            wrong += swapped(first) + swapped(second, 11)
    tensors = [len(each.stats()["tensors"]) for each in ours]
    assert tensors == list(map(len, owned)), "states of their own"
    check(wrong, 4 * len(owned[0]), *ours)


IDENTITY["two_tapes_and_two_compressors"] = partial(two_tapes_with_equal_names, is_shared=False)
IDENTITY["two_tapes_and_one_compressor"] = partial(two_tapes_with_equal_names, is_shared=True)


@IDENTITY
def retracing_with_other_batch_shapes(name):
    """Three gradients, in two groups: a reduction of carriers and an allgather each. Their names
    are those of other ranks and traces."""
    variables = variables_of(SHAPES)
    compressor = dense(variables, name)

    @tf.function(reduce_retracing=False)
    def step(batch):
        coefficients = [c * tf.reduce_mean(batch) for c in telling(variables)]
        coefficients[1] = None
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor, groups=2)

    wrong = [i for size in (1, 2, 3, 2, 1) for i in swapped(step(tf.ones(size)))]
    traces = [step.get_concrete_function(tf.TensorSpec([size])) for size in (1, 2, 3)]
    names = list(map(horovod_operations, traces))
    assert step.experimental_get_tracing_count() == 3
    assert are_alike(names, name)
    assert names == [names[0]] * 3 and len(names[0]) == 4, names
    check(wrong, 5 * 3, compressor)


@IDENTITY
def gradients_missing_in_some_steps(name):
    variables = variables_of(SHAPES)
    compressor = dense(variables, name)
    wrong = []
    for missing in (None, 0, 2, 3, None):
        coefficients = [None if i == missing else c for i, c in enumerate(telling(variables))]
        gradients = tape_gradients(
            linear_loss(variables, coefficients), variables, compressor, groups=2
        )
        wrong += swapped(gradients) + [
            i for i, g in enumerate(gradients) if (g is None) != (i == missing)
        ]
    check(wrong, 5 * len(SHAPES) - 3, compressor)


def one_gradient_object(variables, compressor):
    def step():
        def loss():
            return tf.reduce_sum(variables[0] + variables[1]) * float(hvd.rank() + 1)

        first, second = tape_gradients(loss, variables, compressor)
        return [first, 2 * second]

    return step


def trace_inside_a_trace(variables, compressor):
    return tf.function(lambda: told(variables, compressor))


def direct_allreduce_of_a_group(variables, compressor):
    def step():
        first, second, third = telling(variables)
        options, name = {"compression": compressor}, compressor.name
        pair = hvd.grouped_allreduce([first, second], name=name, **options)
        return [*pair, *hvd.grouped_allreduce([third], name=f"{name}.2", **options)]

    return step


def optimizer_of_tensorflow_1(variables, compressor):
    descent = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    optimizer = hvd.DistributedOptimizer(descent, compression=compressor)

    def step():
        loss = linear_loss(variables, telling(variables))
        return [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]

    return step


for step_of, shapes in {
    one_gradient_object: [(4, 3), (4, 3)],
    trace_inside_a_trace: SHAPES,
    direct_allreduce_of_a_group: [(4, 3), (3,), (2, 2)],
    optimizer_of_tensorflow_1: SHAPES,
}.items():
    IDENTITY[step_of.__name__] = partial(in_both_modes, step_of=step_of, shapes=shapes)


@IDENTITY
def indexed_slices_pass_by(name):
    table, weight = variables_of([(6, 4), (4,)])
    compressor = dense([table, weight], name)

    def step():
        def loss():
            return tf.reduce_sum(tf.gather(table, [1, 3]) * weight) * float(hvd.rank() + 1)

        return tape_gradients(loss, [table, weight], compressor)

    wrong = []
    mean_rank = sum(range(1, hvd.size() + 1)) / hvd.size()
    for run in both_modes(step):
        sparse, plain = run()
        given = np.asarray(tf.convert_to_tensor(sparse))
        is_right = {
            "kind": isinstance(sparse, tf.IndexedSlices),
            "slices": np.allclose(given[[1, 3]], mean_rank) and not given[[0, 2, 4, 5]].any(),
            "weight": np.allclose(np.asarray(plain), 2 * mean_rank),
        }
        wrong += [what for what, is_so in is_right.items() if not is_so]
    assert len(compressor.stats()["tensors"]) == 1, "slices are no tensors of the compressor"
    check(wrong, 2, compressor)


@IDENTITY
def small_tensors_stay_dense(name):
    """Seven entries in two steps, as float32 where they have 16 bits."""
    wrong = []
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        variables = variables_of(((4, 3), (3,), (2, 2)), dtype=dtype)
        compressor = Compression.ldte_bs(
            variables, density=1.0, min_numel=5, allow_dense=False, name=f"{name}.{dtype.name}"
        )
        for groups in (None, 2):
            gradients = told(variables, compressor, groups=groups)
            wrong += swapped([tf.cast(g, tf.float32) for g in gradients])
            wrong += [g.dtype.name for g in gradients if g.dtype != dtype]
        size = 8 if dtype == tf.float64 else 4
        assert compressor.stats()["dense_bytes"] == 2 * 7 * size
        check(wrong, 2, compressor)


@IDENTITY
def dense_tensors_of_two_networks_count_once_a_step(name):
    """Also if a loss scale is found after the first trace."""
    networks = [variables_of(((50, 40), (40, 50), (length,))) for length in (3, 5)]
    options = {"density": 0.1, "min_numel": 100, "allow_dense": False, "name": name}
    compressor, counted = Compression.topk(networks[0] + networks[1], **options), []

    def traced():
        return [
            tf.function(lambda v=v: tape_gradients(linear_loss(v, telling(v)), v, compressor))
            for v in networks
        ]

    def take(steps):
        for step in steps:
            step()
        counted.append(compressor.stats()["dense_bytes"] - sum(counted))

    first, second = traced()
    for steps in ([first], [first], [second], [first, second]):
        take(steps)
    compressor.scale_by(SimpleNamespace(loss_scale=2.0))
    take(traced()[:1])
    compressor.close()
    assert counted == [12, 12, 20, 32, 12], counted


def horovod_operations(traced):
    library = traced.graph.as_graph_def().library
    nodes = [node for function in library.function for node in function.node_def]
    return sorted(node.name for node in nodes if node.op.startswith("Horovod"))


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
    seen = hvd.allgather_object((is_member, steps), name=f"{name}.steps")
    assert len({repr(steps) for is_member, steps in seen if is_member}) == 1
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
    variables = variables_of(SHAPES)
    make = partial(Compression.auto, variables, **SPARSE_ONLY)
    bare = make(name=f"{name}.bare")
    other = make(name=f"{name}.other", trial_steps=3 if last_rank() else 5)
    loss = linear_loss(variables, telling(variables))
    without_tape = caught(lambda: hvd.allreduce(variables[0], compression=bare))
    differing = caught(lambda: tape_gradients(loss, variables, other))
    bare.close()
    other.close()
    assert without_tape.startswith("UnsupportedInput: "), without_tape
    assert "hvd.DistributedGradientTape" in without_tape, without_tape
    assert differing.startswith("RankMismatch: ") and '"trial_steps": 3' in differing, differing
