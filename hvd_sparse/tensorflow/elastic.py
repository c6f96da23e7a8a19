"""Horovod's elastic states for TensorFlow and Keras 2, with a compressor:

    from hvd_sparse.tensorflow.elastic import TensorFlowKerasState

    state = TensorFlowKerasState(model, optimizer, compressor=compressor, batch=0, epoch=0)

Horovod's own state would pickle the compressor, and give rank 0's residuals to all ranks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow import elastic

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.optimizer import is_optimizer_of_keras_3
from hvd_sparse.types import Optimizer, Value


class WithCompressor:
    """Mixin with which an elastic state commits, restores and synchronizes a compressor."""

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
        """Synchronize with the ranks of the new world. Collective."""
        try:
            self.compressor.rejoin()
            super().sync()  # type: ignore[misc]
        # A worker died meanwhile. Outside of the training, Horovod does not recognize this error.
        except tf.errors.UnknownError as error:
            raise HorovodInternalError(error) from error

    def check_host_updates(self) -> None:
        """Require a synchronization even if workers only left, to redistribute residuals."""
        try:
            super().check_host_updates()  # type: ignore[misc]
        except HostsUpdatedInterrupt as interrupt:
            raise HostsUpdatedInterrupt(skip_sync=False) from interrupt


class TensorFlowState(WithCompressor, elastic.TensorFlowState):  # type: ignore[misc]
    """``horovod.tensorflow.elastic.TensorFlowState`` with a compressor of its variables."""


class TensorFlowKerasState(WithCompressor, elastic.TensorFlowKerasState):  # type: ignore[misc]
    """``horovod.tensorflow.elastic.TensorFlowKerasState`` with a compressor. It also replaces the
    ``KerasState`` of ``horovod.tensorflow.keras``.

    Raises
    ------
    UnsupportedInput : the optimizer is of Keras 3; use ``hvd_sparse.keras.elastic.KerasState``
    """

    def __init__(
        self, model: Value, optimizer: Optimizer = None, *others: Any, **options: Any
    ) -> None:
        if is_optimizer_of_keras_3(model.optimizer if optimizer is None else optimizer):
            raise UnsupportedInput(
                "Horovod's elastic state cannot broadcast Keras 3's variables: take "
                "hvd_sparse.keras.elastic.KerasState"
            )
        super().__init__(model, optimizer, *others, **options)
