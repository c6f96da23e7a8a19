"""Cases in which gradients could be confused. A gradient's values identify its variable."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _tensorflow_cases import Compression, hvd, linear_loss, tape_gradients, variables_of

IDENTITY = Cases()
SHAPES = ((4, 3), (3,), (4, 3), (3,))
"""Two variables of each shape, so that their gradients could be confused."""


def dense(params, name, **options):
    return Compression.ldte_bs(params, name=name, **{"density": 1.0, **SPARSE_ONLY, **options})


def telling(variables, first=1):
    """Return coefficients of a linear loss: (first + i) * (rank + 1) for the i-th variable."""
    return [
        tf.fill(v.shape, float((first + i) * (hvd.rank() + 1))) for i, v in enumerate(variables)
    ]


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


def wrong_in_both_modes(step):
    return [i for run in both_modes(step) for _ in range(2) for i in swapped(run())]


def check(wrong, steps, *compressors):
    """Check that no gradient was wrong, and that each compressor has sent all entries in a number
    of steps of tensors."""
    assert wrong == [], wrong
    for compressor in compressors:
        stats = compressor.stats()
        compressor.close()
        assert (stats["sparse_steps"], stats["dense_steps"]) == (steps, 0), stats
        assert stats["entries_sent"] == stats["entries_total"], stats


@IDENTITY
def two_tapes_and_two_compressors_with_equal_names(name):
    generator, critic = variables_of(SHAPES), variables_of(SHAPES)
    ours = [dense(generator, f"{name}.generator"), dense(critic, f"{name}.critic")]

    def step():
        first = tape_gradients(linear_loss(generator, telling(generator)), generator, ours[0])
        return first, tape_gradients(linear_loss(critic, telling(critic, 11)), critic, ours[1])

    wrong = []
    for run in both_modes(step):
        for _ in range(2):
            first, second = run()
            wrong += swapped(first) + swapped(second, 11)
    check(wrong, 4 * len(SHAPES), *ours)


@IDENTITY
def one_compressor_for_two_models_of_equal_shapes(name):
    first, second = variables_of(SHAPES), variables_of(SHAPES)
    compressor = dense(first + second, name)

    def step(variables, number):
        coefficients = [c + number * (hvd.rank() + 1) for c in telling(variables)]
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor)

    wrong = []
    for run in both_modes(step):
        for _ in range(2):
            wrong += swapped(run(first, tf.constant(0.0))) + swapped(
                run(second, tf.constant(10.0)), 11
            )
    assert len(compressor.stats()["tensors"]) == 8, "states of their own"
    check(wrong, 8 * len(SHAPES), compressor)


@IDENTITY
def retracing_with_other_batch_shapes(name):
    variables = variables_of(SHAPES)
    compressor = dense(variables, name)

    @tf.function(reduce_retracing=False)
    def step(batch):
        coefficients = [c * tf.reduce_mean(batch) for c in telling(variables)]
        return tape_gradients(linear_loss(variables, coefficients), variables, compressor)

    wrong = [i for size in (1, 2, 3, 2, 1) for i in swapped(step(tf.ones(size)))]
    assert step.experimental_get_tracing_count() == 3
    check(wrong, 5 * len(SHAPES), compressor)


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


@IDENTITY
def one_gradient_object_for_two_variables(name):
    first, second = variables_of([(4, 3), (4, 3)])
    compressor = dense([first, second], name)

    def step():
        weight = tf.fill((4, 3), float(hvd.rank() + 1))
        return tape_gradients(
            lambda: tf.reduce_sum((first + second) * weight), [first, second], compressor
        )

    wrong = [i for run in both_modes(step) for _ in range(2) for g in run() for i in swapped([g])]
    check(wrong, 8, compressor)


@IDENTITY
def a_trace_inside_a_trace(name):
    variables = variables_of(SHAPES)
    compressor = dense(variables, name)
    step = tf.function(
        lambda: tape_gradients(linear_loss(variables, telling(variables)), variables, compressor)
    )
    outer = tf.function(lambda: step())
    wrong = [i for _ in range(2) for i in swapped(outer())]
    check(wrong, 2 * len(SHAPES), compressor)


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
def direct_allreduce_of_a_group(name):
    variables = variables_of([(4, 3), (3,), (2, 2)])
    compressor = dense(variables, name)

    def step():
        first, second, third = telling(variables)
        pair = hvd.grouped_allreduce([first, second], compression=compressor, name=name)
        return [*pair, *hvd.grouped_allreduce([third], compression=compressor, name=f"{name}.2")]

    wrong = wrong_in_both_modes(step)
    check(wrong, 4 * len(variables), compressor)


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
            gradients = tape_gradients(
                linear_loss(variables, telling(variables)), variables, compressor, groups=groups
            )
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


@IDENTITY
def optimizer_of_tensorflow_1(name):
    variables = variables_of(SHAPES)
    compressor = dense(variables, name)
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0), compression=compressor
    )

    def step():
        pairs = optimizer.compute_gradients(
            linear_loss(variables, telling(variables)), var_list=variables
        )
        return [gradient for gradient, _ in pairs]

    wrong = wrong_in_both_modes(step)
    check(wrong, 4 * len(SHAPES), compressor)
