"""Faults of TensorFlow alone: gradients that come late, or belong to no variable."""

import threading

import numpy as np
import tensorflow as tf
from _common import Cases, caught
from _faults import compress, fails
from _tensorflow_cases import hvd, is_usable, last_rank, variables_of
from harness import say, wait_for

cases = Cases()


@cases
def late_gradient_on_one_rank(name):
    """When the first tensor fails, the gradient of another one is ready on all ranks but one.

    This rank then does nothing until the others have raised their error, so nothing that it does
    later can help them.
    """
    early, late = variables_of([(4, 3), (3, 5)])
    # One rank is slow on purpose, which only a hang may turn into an error.
    compressor = compress([early, late], name=name, on_nonfinite="raise", timeout_s=600.0)

    has_failed = threading.Event()
    has_failed.set()

    def linger(x):
        if last_rank():
            has_failed.wait()
        return x

    @tf.function
    def step(value):
        with tf.GradientTape() as tape:
            delayed = tf.numpy_function(linger, [tf.ones(late.shape)], tf.float32)
            loss = tf.reduce_sum(early * tf.fill(early.shape, value)) + tf.reduce_sum(
                late * tf.ensure_shape(delayed, late.shape)
            )
        wrapped = hvd.DistributedGradientTape(tape, compression=compressor)
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
    said = caught(lambda: step(tf.constant(np.nan) if hvd.rank() == 0 else good))
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
