"""What TensorFlow's graphs call and contain, without ranks."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import worlds

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import InvalidOption, SparseError
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


class Unconnected(hvd.ProcessSet):
    """A process set for which Horovod traces the reduction, and sends nothing."""

    def __init__(self):
        super().__init__([0, 1])
        self.process_set_id = 1

    def size(self):
        return 2

    def rank(self):
        return 0

    def included(self):
        return False


def program(make=Compression.topk, **options):
    """Return a variable, a compressor, and a function that traces a step with them."""
    members = Unconnected()
    variable = tf.Variable(tf.ones((50, 40)))
    options |= {"min_numel": 1, "allow_dense": False, "process_set": members}
    compressor = make([variable], density=0.1, **options)

    def trace():
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(variable * 3.0)
        tape = hvd.DistributedGradientTape(plain, compression=compressor, process_set=members)
        tape.gradient(loss, [variable])

    return variable, compressor, trace


@pytest.mark.parametrize("make", [Compression.topk, Compression.auto])
def test_a_closed_compressor_frees_states_and_variables_though_horovod_keeps_it(monkeypatch, make):
    monkeypatch.setattr("horovod.tensorflow.rank", lambda: 0)
    variable, compressor, trace = program(make)
    trace()
    compressor.step.meet(0, 2)
    compressor.step.compress(0, np.ones(2_000, np.float32), 1.0)
    compressor.commit()
    compressor.step.compress(0, np.ones(2_000, np.float32), 1.0)
    state = compressor.step.transactions.staged(0)
    held = [weakref.ref(each) for each in (variable, state, state.memory.residual.old, compressor)]
    compressor.close()
    del trace, variable, state, compressor
    gc.collect()
    assert [each() is None for each in held] == [True, True, True, False]


def test_a_closed_compressor_refuses_other_steps_and_graphs(monkeypatch):
    monkeypatch.setattr("horovod.tensorflow.rank", lambda: 0)
    _, compressor, trace = program()
    trace()
    send, token = compressor.functions.send, next(iter(compressor.functions._tokens))
    compressor.close()
    gradient = np.ones((50, 40), np.float32)
    for use in (lambda: compressor.compress(gradient), lambda: send(gradient, token, 1.0)):
        with pytest.raises(InvalidOption, match="is closed, so it can neither train"):
            use()


def test_a_compressor_that_was_closed_before_its_first_step_takes_no_name_later(monkeypatch):
    monkeypatch.setattr("horovod.tensorflow.rank", lambda: 0)
    _, compressor, _ = program(name="early")
    compressor.close()
    with pytest.raises(InvalidOption, match="is closed"):
        compressor.state_dict()
    _, another, _ = program(name="early")
    another.resolve()
    another.close()
