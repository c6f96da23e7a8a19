"""A callback of Keras that hands the metrics of ``fit`` to the writers of ``telemetry=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import tensorflow as tf

from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.untyped import Value

Metrics: TypeAlias = "Mapping[str, Value] | None"
"""What Keras tells of the training so far, by name."""


class LogMetrics(tf.keras.callbacks.Callback):  # type: ignore[misc] # Keras gives no types
    """Write the metrics of ``fit`` beside the compressor's records: of every epoch, and of batches.

    Parameters
    ----------
    compression : of the optimizer that trains
    every : batches from one record to the next; as often as ``telemetry_every`` by default, 0 for
        those of epochs alone

    Examples
    --------
    With a model that is compiled::

        model.fit(data, callbacks=[LogMetrics(compression)])
    """

    def __init__(self, compression: TensorflowCompressor, every: int | None = None) -> None:
        super().__init__()
        self._compression = compression
        self._every = compression.configuration.telemetry_every if every is None else every
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Metrics = None) -> None:
        """Log the metrics of a batch, as Keras has averaged them over the epoch so far."""
        self._batches += 1
        if self._every and logs and self._batches % self._every == 0:
            self._compression.log(**dict(logs))

    def on_epoch_end(self, epoch: int, logs: Metrics = None) -> None:
        """Log the metrics of an epoch, those of the validation among them."""
        if logs:
            self._compression.log(**dict(logs))
