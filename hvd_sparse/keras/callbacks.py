"""Callbacks for ``fit`` with Keras 3. Horovod's own callbacks use functions of Keras 2."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from hvd_sparse.checks import check_number
from hvd_sparse.collectives.horovod_tensorflow import broadcast_variables, hvd
from hvd_sparse.errors import InvalidOption
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.tensorflow.optimizer import common_variables
from hvd_sparse.tensorflow.variables import value_of, values_of
from hvd_sparse.types import ProcessSet, Value

Logs = dict[str, Value]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcast the variables of the model and of the optimizer from ``root_rank`` to the ranks of
    ``process_set`` (by default all). The broadcast follows the first batch, because this batch may
    build the variables. Metrics and states of random generators are not broadcast, nor are the
    model's variables that were passed to ``register_local_var``. The optimizer's moments of these
    variables are broadcast."""

    def __init__(
        self, root_rank: int = 0, process_set: ProcessSet = hvd.global_process_set
    ) -> None:
        super().__init__()
        self._root_rank, self._process_set, self._is_done = root_rank, process_set, False
        self._local: set[Value] = set()

    def register_local_var(self, variable: Value) -> None:
        self._local.add(value_of(variable).ref())

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcast the variables after the first batch. Collective."""
        if self._is_done or not self._process_set.included():
            return
        for variables in (self.model.weights, common_variables(self.model.optimizer)):
            shared = [v for v in values_of(variables) if v.ref() not in self._local]
            broadcast_variables(shared, self._root_rank, self._process_set)
        self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average the metrics of an epoch over the ranks of ``process_set`` (by default all). Callbacks
    that come later in the list see the averages."""

    def __init__(self, process_set: ProcessSet = hvd.global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Replace the metrics in ``logs`` by their averages. Collective."""
        if not logs or not self._process_set.included():
            return
        for metric in sorted(logs):  # one order on all ranks
            mine = tf.constant(np.asarray(logs[metric]), tf.float64)
            name = f"hvd_sparse.metric.{metric}"
            mean = hvd.allreduce(mine, name=name, process_set=self._process_set).numpy()
            logs[metric] = mean if np.ndim(mean) else float(mean)


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Raise the learning rate batch by batch from ``initial_lr / size`` to ``initial_lr``; ``size``
    is the number of ranks.

    Parameters
    ----------
    initial_lr : learning rate after the warm-up, already multiplied by the number of ranks
    warmup_epochs : duration of the warm-up in epochs, above 0, for example 0.5
    steps_per_epoch : batches in an epoch. If it is omitted and ``fit`` cannot count them, the
        start of the training raises InvalidOption
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None
    ) -> None:
        super().__init__()
        check_number(warmup_epochs, "warmup_epochs of LearningRateWarmupCallback", 0)
        self._rate, self._epochs, self._given = initial_lr, warmup_epochs, steps_per_epoch
        self._epoch, self._is_below = 0, False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._steps = self._given or self.params.get("steps")
        if not self._steps:
            raise InvalidOption(
                "steps_per_epoch is unknown, as fit cannot count the batches of its data: give "
                "steps_per_epoch= to LearningRateWarmupCallback"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        assert self._steps
        done = self._epoch + (batch + 1) / self._steps
        # The last batch sets initial_lr, or a later one, because Keras names only the first batch
        # of steps_per_execution.
        if done < self._epochs + 1 / self._steps or self._is_below:
            share = min(done / self._epochs, 1.0)
            self._is_below, size = share < 1, hvd.size()
            self.model.optimizer.learning_rate = self._rate * (1 + (size - 1) * share) / size

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Add the learning rate to ``logs``, as "lr"."""
        if logs is not None:
            logs["lr"] = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))


class PlanGroupsCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Call ``compression.replan()`` before every batch, for a compressor with ``groups="planned"``.
    If the groups change, the model's training step is traced again."""

    def __init__(self, compression: TensorflowCompressor) -> None:
        super().__init__()
        self._compression = compression

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Call ``replan``. In the step that decides the groups, the call is collective."""
        if self._compression.replan():
            self.model.make_train_function(force=True)
