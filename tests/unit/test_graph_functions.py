"""What TensorFlow's graphs call and contain, without ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
import worlds

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
import tensorflow as tf

from hvd_sparse.errors import SparseError
from hvd_sparse.kernels import reference
from hvd_sparse.plan.policy import Policy
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow import Compression, graph_functions
from hvd_sparse.watch.watchdog import Ledger

TOKENS = {b"a": 0, b"b": 1}


def test_tensors_of_a_failed_step_that_have_no_result_are_dropped_in_the_next(monkeypatch):
    monkeypatch.setattr(graph_functions, "LEAST_WAIT_S", 0.0)
    specs = worlds.tensors((12,), (9,))
    step = Step(worlds.configure(), specs, [(0,), (1,)], reference)
    step.meet(0, 1)
    owner = SimpleNamespace(step=step, watchdog=SimpleNamespace(ledger=Ledger()))
    functions = graph_functions.GraphFunctions(owner, TOKENS, Policy())
    functions.traced |= {"t0", "t1"}

    def send(token):
        gradient = np.ones(specs[TOKENS[token]].numel, np.float32)
        wire, number, *_ = functions.send(gradient, token, 1.0)
        return wire, number

    for _ in range(3):
        wire, number = send(b"a")
        send(b"b")
        with pytest.raises(SparseError):
            functions.receive(number, np.full_like(wire, np.nan), wire, wire)
    send(b"a")
    assert len(functions._tickets) == 1


@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
def test_what_is_sent_of_a_gradient_of_which_nothing_is_sent_is_no_constant(shape):
    """TensorFlow would evaluate an allreduce of it once, when it optimizes the graph."""
    compression, are_constant = Compression.nothing(), []

    @tf.function
    def reduced(gradient):
        wire, context = compression.compress(gradient)
        are_constant.append(tf.get_static_value(wire) is not None)
        assert wire.dtype == gradient.dtype
        return wire, compression.decompress(wire, context)

    gradient = np.full(shape, 7, np.float16)
    wire, result = reduced(tf.constant(gradient))
    assert are_constant == [False]
    assert wire.numpy().tolist() == [7] * min(gradient.size, 1)
    np.testing.assert_array_equal(result, gradient)
