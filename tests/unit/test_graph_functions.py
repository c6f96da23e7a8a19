"""What TensorFlow's graphs call and contain, and its states, without ranks."""

import gc
import itertools
import pickle
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import worlds

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
import horovod.tensorflow as hvd
import tensorflow as tf

from hvd_sparse.errors import InvalidOption, NonFiniteGradient
from hvd_sparse.kernels.rows import address
from hvd_sparse.telemetry.contract import numbers_of
from hvd_sparse.tensorflow import (
    Compression,
    LocalSteps,
    LogMetrics,
    TensorflowCompressor,
    elastic,
    graph_functions,
    local_steps,
)
from hvd_sparse.tensorflow.optimizer import is_keras_3


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


@pytest.fixture
def rank_0(monkeypatch):
    monkeypatch.setattr("horovod.tensorflow.rank", lambda: 0)


def program(make=Compression.topk, **options):
    """Return a matrix, a compressor of it and of a vector, which is never compressed, and a
    function that traces a step with them."""
    members = Unconnected()
    variables = [tf.Variable(tf.ones(shape)) for shape in ((50, 40), (5,))]
    options |= {"min_numel": 1, "allow_dense": False, "process_set": members}
    compressor = make(variables, density=0.1, **options)

    def trace():
        with tf.GradientTape() as plain:
            loss = sum(tf.reduce_sum(variable * 3.0) for variable in variables)
        tape = hvd.DistributedGradientTape(plain, compression=compressor, process_set=members)
        tape.gradient(loss, variables)

    return variables[0], compressor, trace


@pytest.mark.parametrize("make", [Compression.topk, Compression.auto])
def test_a_closed_compressor_frees_states_and_variables_though_horovod_keeps_it(rank_0, make):
    def scale():
        return 1.0

    variable, compressor, trace = program(make, grad_scaler=scale)
    trace()
    compressor.step.meet(0, 2)
    compressor.step.compress(0, np.ones(2_000, np.float32), 1.0)
    compressor.commit()
    compressor.step.compress(0, np.ones(2_000, np.float32), 1.0)
    state = compressor.step.transactions.staged(0)
    freed = variable, scale, state, state.memory.residual.old
    held = [weakref.ref(each) for each in (*freed, compressor)]
    compressor.close()
    del freed, trace, variable, scale, state, compressor
    gc.collect()
    assert [each() is None for each in held] == [True, True, True, True, False]


@pytest.mark.parametrize("make", [Compression.topk, Compression.auto])
def test_a_compressor_does_not_keep_the_graph_that_was_traced_last(rank_0, make):
    _, compressor, trace = program(make)
    graph = weakref.ref(tf.function(trace).get_concrete_function().graph)
    gc.collect()
    assert graph() is None
    compressor.close()


def test_a_closed_compressor_refuses_other_steps_and_graphs(rank_0):
    _, compressor, trace = program()
    trace()
    send, token = compressor.functions.send, next(iter(compressor.functions._tokens))
    compressor.close()
    gradient = np.ones((50, 40), np.float32)
    for use in (lambda: compressor.compress(gradient), lambda: send(gradient, token, 1.0)):
        with pytest.raises(InvalidOption, match="is closed, so it can neither train"):
            use()


def test_nan_in_a_dense_step_of_auto_is_raised_without_waiting_for_compressible_tensors(
    rank_0, monkeypatch
):
    _, compressor, trace = program(Compression.auto, on_nonfinite="raise")
    trace()
    functions, nothing = compressor.functions, np.empty(0, np.uint8)
    tokens = {position: token for token, position in functions._tokens.items()}
    first = np.ones(1, np.float32)
    compressor._policy._begin_step(compressor, {}, np.int64(0), first, np.array([tokens[0]]))
    number = functions.send_dense(5, {}, first, tokens[1], np.float32(1))
    monkeypatch.setattr(graph_functions.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(NonFiniteGradient, match="which is sent dense"):
        functions.receive(number, np.full(5, np.nan, np.float32), nothing, nothing)
    compressor.close()


def test_a_compressor_that_is_refused_or_closed_before_its_first_step_leaves_its_name_free(rank_0):
    members = Unconnected()
    members.included = lambda: True
    options = {"name": "free", "process_set": members, "min_numel": 1, "groups": "planned"}
    twins = [tf.Variable(tf.ones((50, 40)), name="same") for _ in range(2)]
    refused, closed, another = (
        Compression.topk(variables, density=0.1, **options)
        for variables in (twins, twins[:1], twins[:1])
    )
    with pytest.raises(InvalidOption, match="two variables are called 'same:0'"):
        refused.resolve()
    assert not hasattr(refused, "watchdog")
    closed.close()
    with pytest.raises(InvalidOption, match="is closed"):
        closed.state_dict()
    another.resolve()
    another.close()
    refused.close()


def test_entries_of_a_metric_that_is_an_array_are_logged_one_by_one():
    told = []
    compression = SimpleNamespace(
        configuration=worlds.configure(), log=lambda **metrics: told.append(numbers_of(metrics))
    )
    logs = {"loss": 0.5, "step": tf.constant(3.0), "f1": np.array([0.25, 1.0], np.float32)}
    LogMetrics(compression).on_epoch_end(0, {**logs, "confusion": [[1, 2], [3, 4]]})
    cells = {f"confusion/{cell}": cell + 1 for cell in range(4)}
    assert told == [{"loss": 0.5, "my_step": 3.0, "f1/0": 0.25, "f1/1": 1.0, **cells}]


def noting(told):
    """Return a compressor that only notes what a state asks of it."""
    asked = {name: lambda name=name: told.append(name) for name in ("commit", "go_back", "rejoin")}
    return SimpleNamespace(**asked)


def test_a_state_of_variables_broadcasts_them_when_the_ranks_synchronize(monkeypatch):
    """Not when it is made: the others of a joining worker are synchronizing then."""
    told, variable = [], tf.Variable([1.0, 2.0])

    def broadcast(variables):
        told.append("broadcast")
        assert [each is variable for each in variables] == [True]
        variable.assign([5.0, 6.0])

    monkeypatch.setattr(elastic, "broadcast_variables", broadcast)
    monkeypatch.setattr(elastic.elastic, "broadcast_object", lambda told: told)
    state = elastic.TensorFlowState([variable], compressor=noting(told), step=7)
    variable.assign([3.0, 4.0])
    state.restore()
    assert (variable.numpy().tolist(), told) == ([1.0, 2.0], ["commit", "go_back"])
    state.sync()
    variable.assign([3.0, 4.0])
    state.restore()
    assert variable.numpy().tolist() == [5.0, 6.0]
    assert told[2:] == ["rejoin", "broadcast", "commit", "go_back"]
    assert state.step == 7


@pytest.mark.skipif(is_keras_3(), reason="tf.keras is Keras 3")
@pytest.mark.parametrize("is_legacy", [False, True])
def test_a_state_of_a_model_has_all_of_the_optimizers_variables_to_broadcast(is_legacy):
    kinds = tf.keras.optimizers.legacy if is_legacy else tf.keras.optimizers
    model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    model.build((None, 2))
    model.compile(kinds.Adam(), "mse")
    elastic.TensorFlowKerasState(model, compressor=noting([]))
    assert len(model.optimizer.variables()) == 1 + 2 * len(model.trainable_variables)


def test_pickling_as_horovods_own_elastic_state_does_is_refused_with_the_name_of_ours():
    compressor = TensorflowCompressor.__new__(TensorflowCompressor)
    words = r"elastic run.*state of hvd_sparse\.tensorflow\.elastic"
    with pytest.raises(InvalidOption, match=words):
        pickle.dumps(compressor)


@pytest.mark.parametrize(("momentum", "saved"), [(0.9, []), (0.0, [[1.0]])])
def test_local_steps_refuse_a_state_whose_outer_velocity_would_be_lost(momentum, saved):
    velocities = [tf.Variable([2.0])] if momentum else []
    local = SimpleNamespace(_velocities=velocities, _momentum=momentum)
    with pytest.raises(InvalidOption, match=f"has {len(saved)} velocities, and outer_momentum"):
        LocalSteps.load_state_dict(local, {"velocities": saved})


def test_local_steps_refuse_groups_that_they_would_never_plan():
    make = partial(Compression.topk, density=0.1, groups="planned", process_set=Unconnected())
    weights = [tf.Variable(tf.ones((50, 40)))]
    for _ in range(2):  # the refused compressor is closed
        with pytest.raises(InvalidOption, match=r"groups is 'planned'.*leave groups out"):
            LocalSteps(weights, compression=partial(make, name="local"), every=1)


def test_local_steps_broadcast_and_exchange_in_the_process_set_of_their_compressor(monkeypatch):
    asked = []
    monkeypatch.setattr("horovod.tensorflow.rank", lambda: 0)
    monkeypatch.setattr(local_steps, "broadcast_variables", lambda _, *place: asked.append(place))
    members = Unconnected()
    members.ranks = [2, 3]
    members.included = lambda: True
    weights = tf.Variable(tf.ones((50, 40)))
    make = partial(Compression.topk, density=0.1, min_numel=1, process_set=members)
    local = local_steps.LocalSteps([weights], compression=make, every=1)
    assert asked == [(2, members)]
    members.included = lambda: False
    weights.assign_sub(tf.ones((50, 40)))
    local.advance()  # a rank outside of the set goes on alone
    np.testing.assert_array_equal(weights, np.zeros((50, 40)))
    local.compressor.close()


def test_the_memory_of_a_result_is_used_again_only_when_nothing_refers_to_it():
    memory, spec = graph_functions.ResultMemory(), worlds.tensors((300,))[0]
    numbers = itertools.count()

    def result():
        taken = memory.take(0, spec)
        taken[:] = next(numbers)
        return taken

    first, second, other = (
        address(each()) for each in (result, result, partial(memory.take, 1, spec))
    )
    assert first == second != other
    kept, view = result(), result()[:5]
    tensors = [graph_functions.call_numpy(result, [], tf.float32, name="x") for _ in range(3)]
    everything = [kept, view, *tensors, result()]
    assert [set(each[:5].tolist()) for each in map(np.asarray, everything)] == [
        {2.0}, {3.0}, {4.0}, {5.0}, {6.0}, {7.0}
    ]  # fmt: skip
