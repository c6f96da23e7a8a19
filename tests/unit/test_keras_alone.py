"""What Keras 3 does with the parts of the frontends, in one process and without Horovod's ranks."""

import gc
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
pytest.importorskip("keras", "3.0")
import keras
import numpy as np
import tensorflow as tf
import worlds

from hvd_sparse.errors import InvalidOption
from hvd_sparse.keras import DistributedGradientTape, DistributedOptimizer, callbacks, elastic
from hvd_sparse.kernels import reference
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.follower import Follower
from hvd_sparse.tensorflow.optimizer import foresee, is_keras_3, read_optimizer
from hvd_sparse.tensorflow.variables import VariableIndex, VariableSource


def variable(*values):
    return keras.Variable(values, dtype="float32")


@pytest.mark.parametrize("decorate", [tf.function, lambda function: function])
def test_a_loss_scale_that_keras_creates_after_the_first_gradient_is_read_at_every_step(decorate):
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
    read = decorate(lambda: TensorflowCompressor._loss_scale(SimpleNamespace(_scaler=scaler)))
    assert float(read()) == 8.0
    scaler.build([variable(1.0)])
    scaler.dynamic_scale.assign(4.0)
    assert float(read()) == 4.0


def test_a_kept_optimizer_is_judged_by_the_mean_of_densities_by_name(caplog):
    """This happens before the first step, when the compressor has no name yet."""
    variables = [tf.Variable(np.zeros((30, columns))) for columns in (1, 3)]
    configuration = worlds.configure(density=lambda name, shape: 0.001 * shape[1])
    compressor = SimpleNamespace(configuration=configuration, _source=VariableSource(variables))
    compressor._is_called, compressor._follower = lambda: True, None
    compressor.is_forewarned = False
    TensorflowCompressor._look_at(compressor, keras.optimizers.Adam())
    (text,) = caplog.messages
    assert "beta_1 0.9 and gets gradients of density 0.0025" in text


def test_a_schedule_is_foreseen_at_the_last_batch_of_every_update():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 12)
    sgd = keras.optimizers.SGD(schedule, gradient_accumulation_steps=4)
    for optimizer in (sgd, keras.optimizers.LossScaleOptimizer(sgd)):
        path = foresee(optimizer, None, 3).path
        told = [float(schedule(batch)) for batch in (3, 7, 11)]
        assert np.ravel(path) == pytest.approx(told, rel=1e-4)


def test_the_optimizer_inside_of_a_loss_scale_optimizer_is_read_also_in_keras_2():
    kinds = [(keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer)]
    if not is_keras_3():
        around = tf.keras.mixed_precision.LossScaleOptimizer
        kinds += [(tf.keras.optimizers.SGD, around), (tf.keras.optimizers.legacy.SGD, around)]
    for kind, around in kinds:
        sgd = kind(0.1, momentum=0.9)
        told = read_optimizer(around(sgd))
        assert told.memories and told == read_optimizer(sgd)


def rates_of_fit(warmup, batch_size, at_once, epochs):
    """Return the learning rate at the end of each of these epochs, with 16 samples."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.4), "mse", steps_per_execution=at_once)
    ones = np.ones((16, 1), np.float32)
    return model.fit(ones, ones, batch_size, epochs, verbose=0, callbacks=[warmup]).history["lr"]


def test_a_warm_up_ends_at_the_initial_rate_and_counts_the_batches_of_every_fit_anew(monkeypatch):
    monkeypatch.setattr(callbacks.hvd, "size", lambda: 4)
    for at_once in (1, 2, 3, 8):
        warmup = callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=1)
        assert rates_of_fit(warmup, 2, at_once, 3)[1:] == pytest.approx([0.4, 0.4])
    warmup = callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    halves = [rates_of_fit(warmup, size, 1, 1) for size in (2, 4)]
    assert np.ravel(halves) == pytest.approx([0.25, 0.25])


def test_a_tape_is_freed_with_its_last_reference():
    """A persistent one holds the activations."""
    gc.disable()
    try:
        tape = DistributedGradientTape(tf.GradientTape(persistent=True))
        is_alive = weakref.ref(tape)
        del tape
        assert is_alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_scaled", [False, True])
def test_sums_of_gradients_that_a_rank_accumulates_are_not_broadcast(is_scaled, monkeypatch):
    sent = []
    for module in (callbacks, elastic):
        monkeypatch.setattr(module, "broadcast_variables", lambda given, *_: sent.append(given))
    inner = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if is_scaled else inner
    optimizer.build([variable(1.0), variable(2.0)])
    model = SimpleNamespace(weights=[variable(3.0)], optimizer=optimizer)
    members = SimpleNamespace(included=lambda: True)
    callback = callbacks.BroadcastGlobalVariablesCallback(process_set=members)
    callback.set_model(model)
    callback.on_train_batch_end(0)
    elastic.KerasState._broadcast(SimpleNamespace(model=model, optimizer=optimizer))
    weights, of_optimizer, of_both = [[each.name for each in given] for given in sent]
    assert of_both == weights + of_optimizer
    assert len(of_optimizer) == len(optimizer.variables) - 2
    assert not [name for name in of_optimizer if "accumulator" in name]


def test_no_gradients_are_no_step_as_without_us():
    optimizer = DistributedOptimizer(keras.optimizers.SGD())
    optimizer.apply([])
    assert int(optimizer.iterations) == 0


def test_an_optimizer_whose_compressor_is_closed_keeps_the_moments_and_refuses_gradients():
    weights = variable(*range(9))
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer.build([weights])
    configuration = worlds.configure("topk", 1.0, memory="momentum_feedback", allow_dense=True)
    step = Step(configuration, worlds.tensors((9,)), [(0,)], reference)
    step.meet(0, 1)
    follower = Follower(optimizer, configuration.memory)
    follower.bind(step, VariableIndex([weights.value]), ["weights"], lambda: 1)
    follower.met.add(0)
    follower.note(follower.beside(tf.constant(1.0)).numpy())
    wire, ticket = step.compress(0, np.ones(9, np.float32))
    step.result(ticket, wire, np.empty(0, np.float32))
    follower.close()
    step.transactions.reset()
    assert not [each for each in vars(follower).values() if each in (optimizer, step)]
    assert optimizer.momentums[0].numpy().tolist() == [-0.5] * 9
    with pytest.raises(InvalidOption, match="came through no compressor"):
        optimizer.apply([tf.ones(9)], [weights])
    assert weights.numpy().tolist() == list(range(9))


def test_a_tensor_that_the_last_steps_before_a_save_did_not_use_continues_at_the_optimizers_count():
    follower = Follower(keras.optimizers.Adam(), AdamCorrection())
    state = SimpleNamespace(steps=12, memory=SimpleNamespace(begun=-44))  # the last was step 55
    follower._resume(state, 0, 60)
    assert state.steps - state.memory.begun == 60
