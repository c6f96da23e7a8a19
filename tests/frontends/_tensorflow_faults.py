"""Faults of TensorFlow alone: gradients that come late, or belong to no variable."""

import threading
import time
from functools import partial

import numpy as np
import tensorflow as tf
from _common import Cases, caught
from _framework import compress, fails
from _tensorflow_cases import hvd, is_usable, last_rank, linear_loss, tape_gradients, variables_of
from harness import say, wait_for

cases = Cases()


def late_gradient(name, early=(4, 3), late=(3, 5), bad=(np.nan, 1.0), op=hvd.Average):
    """When the first tensor fails, the gradient of another one is ready on all ranks but one.

    This rank then does nothing until the others have raised their error, so nothing that it does
    later can help them.

    early, late : shapes of the two tensors; vectors are never compressed
    bad : the first tensor's gradient in the failing step, on rank 0 and on the other ranks
    """
    early, late = variables_of([early, late])
    # One rank is slow on purpose, which only a hang may turn into an error.
    options = {"on_nonfinite": "raise", "timeout_s": 600.0, "compress_1d": False}
    compressor = compress([early, late], name=name, **options)

    has_failed = threading.Event()
    has_failed.set()

    def linger(x):
        if last_rank():
            has_failed.wait(20.0)
            time.sleep(0.3)
        return x

    @tf.function
    def step(value):
        with tf.GradientTape() as tape:
            delayed = tf.numpy_function(linger, [tf.ones(late.shape)], tf.float32)
            loss = tf.reduce_sum(early * tf.fill(early.shape, value)) + tf.reduce_sum(
                late * tf.ensure_shape(delayed, late.shape)
            )
        wrapped = hvd.DistributedGradientTape(tape, compression=compressor, op=op)
        return wrapped.gradient(loss, [early, late])

    good = tf.constant(1.0)
    step(good)
    functions = compressor.functions
    take_back = functions._take_back

    def failing(*given):
        has_failed.set()
        take_back(*given)

    functions._take_back = failing
    has_failed.clear()
    said = caught(lambda: step(tf.constant(bad[min(hvd.rank(), 1)])))
    if last_rank():
        for rank in range(hvd.size() - 1):
            wait_for(f"{name}.{rank}")
    else:
        say(f"{name}.{hvd.rank()}")
    pending = compressor.watchdog.ledger.pending()
    again = caught(lambda: step(good))
    compressor.close()
    result = {"raised": said, "is_usable": is_usable(name)}
    assert pending == {}, pending
    assert again == "nothing was raised", again
    return result


cases["late_gradient_on_one_rank"] = late_gradient
cases["late_gradient_that_is_never_compressed"] = partial(late_gradient, late=(5,))
cases["late_gradient_after_one_that_is_never_compressed"] = partial(late_gradient, early=(5,))
overflowing = {"bad": (3e38, 3e38), "op": hvd.Sum}
cases["late_gradient_after_a_sum_that_overflows"] = partial(late_gradient, **overflowing)


@cases
def aborted_by_an_error_of_the_program(name):
    """The next steps have only one of the tensors whose exchange did not begin. The step of another
    tape, which the program has applied before, stays."""
    variables = variables_of([(4, 3), (3, 5), (2, 6), (5, 4)])
    compressor = compress(variables, name=name)
    given = [tf.fill(v.shape, 1.0 + hvd.rank()) for v in variables]

    def fail(x):
        while len(compressor.functions._tickets) < 2:
            time.sleep(0.01)
        raise ArithmeticError("of the program")

    @tf.function
    def aborted_step():
        late = tf.numpy_function(fail, [given[2]], tf.float32)
        gradients = [*given[:2], tf.ensure_shape(late, variables[2].shape)]
        loss = linear_loss(variables[:3], gradients)
        return tape_gradients(loss, variables[:3], compressor, groups=1)

    @tf.function
    def step(number):
        only = [variables[number]]
        return tape_gradients(linear_loss(only, [given[number]]), only, compressor)

    step(3)
    said, functions = caught(aborted_step), compressor.functions
    waiting = sorted(compressor.watchdog.ledger.pending())
    results = [step(0)[0].numpy() for _ in range(2)]
    kept, pending = len(functions._tickets), compressor.watchdog.ledger.pending()
    steps = {key: each["steps"] for key, each in compressor.state_dict()["tensors"].items()}
    compressor.close()
    assert "ArithmeticError: of the program" in said, said
    assert waiting == ["tensor0:0", "tensor1:0"], waiting
    assert (kept, pending) == (0, {})
    # Of the twelve equal entries, each step sends a quarter.
    assert [np.count_nonzero(each) for each in results] == [3, 3]
    assert steps == {"tensor0:0": 2, "tensor1:0": 0, "tensor3:0": 1}, steps


@cases
def unknown_tensor_that_the_tape_watches(name):
    (weight,) = variables_of([(4, 3)])
    inputs = tf.ones((4, 3))
    compressor = compress([weight], name=name)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(weight * inputs)
        tape = hvd.DistributedGradientTape(tape, compression=compressor)
        return tape.gradient(loss, [inputs, weight])

    return fails(name, compressor, step)
