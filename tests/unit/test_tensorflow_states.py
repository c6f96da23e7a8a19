"""States of TensorFlow and Keras 2, in one process and without Horovod's ranks."""

import pickle
from types import SimpleNamespace

import pytest

pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
import tensorflow as tf

from hvd_sparse.errors import InvalidOption
from hvd_sparse.tensorflow import LocalSteps, TensorflowCompressor, elastic
from hvd_sparse.tensorflow.optimizer import is_keras_3


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
    with pytest.raises(
        InvalidOption, match=r"elastic run.*state of hvd_sparse\.tensorflow\.elastic"
    ):
        pickle.dumps(compressor)


@pytest.mark.parametrize(("momentum", "saved"), [(0.9, []), (0.0, [[1.0]])])
def test_local_steps_refuse_a_state_whose_outer_velocity_would_be_lost(momentum, saved):
    velocities = [tf.Variable([2.0])] if momentum else []
    local = SimpleNamespace(_velocities=velocities, _momentum=momentum)
    with pytest.raises(InvalidOption, match=f"has {len(saved)} velocities, and outer_momentum"):
        LocalSteps.load_state_dict(local, {"velocities": saved})
