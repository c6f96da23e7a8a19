"""Horovod's elastic states for TensorFlow and Keras 2, with a compressor:

    from hvd_sparse.tensorflow.elastic import TensorFlowKerasState

    state = TensorFlowKerasState(model, optimizer, compressor=compressor, batch=0, epoch=0)

Horovod's own state would pickle the compressor, and give rank 0's residuals to all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from horovod.common.elastic import ObjectState
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow import elastic

from hvd_sparse.collectives.horovod_tensorflow import broadcast_variables
from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.optimizer import is_optimizer_of_keras_3
from hvd_sparse.tensorflow.variables import values_of
from hvd_sparse.types import Optimizer, Value


class WithCompressor:
    """Mixin with which Horovod's elastic states commit, restore and synchronize a compressor."""

    def __init__(self, *arguments: Any, compressor: TensorflowCompressor, **options: Any) -> None:
        self.compressor = compressor
        super().__init__(*arguments, **options)

    def _save_model(self) -> None:
        self.compressor.commit()
        super()._save_model()  # type: ignore[misc]

    def _load_model(self) -> None:
        self.compressor.go_back()
        super()._load_model()  # type: ignore[misc]

    def sync(self) -> None:
        """Redistribute the compressor's state over the ranks of the new world, and let Horovod
        synchronize the rest of the elastic state. Collective."""
        try:
            self.compressor.rejoin()
            super().sync()  # type: ignore[misc]
        # A worker died meanwhile. Outside of the training, Horovod does not recognize this error.
        except tf.errors.UnknownError as error:
            raise HorovodInternalError(error) from error

    def check_host_updates(self) -> None:
        """Raise Horovod's ``HostsUpdatedInterrupt`` if the hosts have changed. Unlike Horovod's own
        method, require a synchronization also if workers only left, to redistribute residuals."""
        try:
            super().check_host_updates()  # type: ignore[misc]
        except HostsUpdatedInterrupt as interrupt:
            raise HostsUpdatedInterrupt(skip_sync=False) from interrupt


class _State(elastic.TensorFlowState):  # type: ignore[misc]
    """Horovod's state, except that ``sync`` broadcasts the variables. Under TensorFlow 2, Horovod
    broadcasts them in the constructor, and not in ``sync``. So a worker that joins later would wait
    in its constructor forever, because workers that have a state already only call ``sync``."""

    def __init__(self, variables: Iterable[Value], **options: Any) -> None:
        self.variables, self.session = list(variables), None
        self._eval_fn, self._assign_fn = self._to_numpy, self._assign_var
        self._save_model()
        names = {"bcast_object": elastic.broadcast_object, "get_rank": elastic.rank}
        ObjectState.__init__(self, **names, **options)

    def sync(self) -> None:
        broadcast_variables(values_of(self.variables))
        super().sync()


class TensorFlowState(WithCompressor, _State):
    """Elastic state of variables, with their compressor. It replaces
    ``horovod.tensorflow.elastic.TensorFlowState``.

    Parameters
    ----------
    variables : all variables that must be equal on all ranks, also those of the optimizer, which
        must be built
    compressor : this rank's compressor; residuals are redistributed if workers join or leave
    options : further attributes of the state, which rank 0 broadcasts
    """


class TensorFlowKerasState(WithCompressor, elastic.TensorFlowKerasState):  # type: ignore[misc]
    """``horovod.tensorflow.elastic.TensorFlowKerasState`` with a compressor. It also replaces the
    ``KerasState`` of ``horovod.tensorflow.keras``. The constructor builds the optimizer, because
    the broadcast needs the same number of variables on all workers.

    Raises
    ------
    UnsupportedInput : the optimizer is of Keras 3; use ``hvd_sparse.keras.elastic.KerasState``
    """

    def __init__(
        self, model: Value, optimizer: Optimizer = None, *others: Any, **options: Any
    ) -> None:
        trains = model.optimizer if optimizer is None else optimizer
        if is_optimizer_of_keras_3(trains):
            raise UnsupportedInput(
                "Horovod's elastic state cannot broadcast Keras 3's variables: take "
                "hvd_sparse.keras.elastic.KerasState"
            )
        if getattr(model, "built", True):  # otherwise Horovod raises an error
            is_legacy = hasattr(trains, "_create_all_weights")
            build = trains._create_all_weights if is_legacy else trains.build
            build(model.trainable_variables)
        super().__init__(model, optimizer, *others, **options)
