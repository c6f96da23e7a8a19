"""Horovod's elastic state for a model and an optimizer of Keras 3, with a compressor:

    from hvd_sparse.keras.elastic import KerasState

    state = KerasState(model, compressor=compressor, batch=0, epoch=0)

Horovod's own state calls methods that only variables of Keras 2 have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from horovod.tensorflow import elastic

from hvd_sparse.collectives.horovod_tensorflow import broadcast_variables
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.elastic import WithCompressor
from hvd_sparse.tensorflow.optimizer import common_variables, is_optimizer_of_keras_3
from hvd_sparse.tensorflow.variables import values_of
from hvd_sparse.types import Optimizer, Value


class KerasState(WithCompressor, elastic.TensorFlowKerasState):  # type: ignore[misc]
    """Elastic state of a Keras 3 model, its optimizer, and their compressor.

    The state commits, restores and broadcasts the variables of model and optimizer, but neither
    metrics nor states of random generators. If the optimizer is not built yet, the constructor
    builds it, because the broadcast needs the same number of variables on all workers.

    Parameters
    ----------
    model : a built model
    optimizer : the optimizer; None for the optimizer with which the model is compiled
    compressor : this rank's compressor; residuals are redistributed if workers join or leave
    options : further attributes of the state, which rank 0 broadcasts

    Raises
    ------
    InvalidOption : the model is not built, or has no optimizer of Keras 3
    """

    def __init__(
        self,
        model: Value,
        optimizer: Optimizer = None,
        *,
        compressor: TensorflowCompressor,
        **options: Any,
    ) -> None:
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if optimizer is None:
            raise InvalidOption("the model has no optimizer: compile it, or give optimizer=")
        if not is_optimizer_of_keras_3(optimizer):
            raise InvalidOption(
                f"{type(optimizer).__name__} is no optimizer of Keras 3: those of Keras 2 take "
                "hvd_sparse.tensorflow.elastic.TensorFlowKerasState"
            )
        if not model.built:
            raise InvalidOption("the model is not built: call model.build(input_shape) before")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        super().__init__(model, optimizer, compressor=compressor, **options)
        self._bcast_model = self._broadcast  # replaces Horovod's function

    def _variables(self) -> list[Value]:
        return [*self.model.weights, *self.optimizer.variables]

    def _save_model(self) -> None:
        self.compressor.commit()
        self._saved = [np.array(variable) for variable in self._variables()]

    def _load_model(self) -> None:
        self.compressor.go_back()
        for variable, saved in zip(self._variables(), self._saved, strict=True):
            variable.assign(saved)

    def _broadcast(self) -> None:
        variables = [*self.model.weights, *common_variables(self.optimizer)]
        broadcast_variables(values_of(variables))
