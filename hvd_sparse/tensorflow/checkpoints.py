"""A compressor's state in TensorFlow's checkpoints, and callbacks for Keras's ``fit``."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from hvd_sparse.state.checkpoint_file import from_bytes, to_bytes
from hvd_sparse.telemetry.contract import COMMON_FIELDS
from hvd_sparse.tensorflow.compressor import TensorflowCompressor
from hvd_sparse.types import Value


class CompressorState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """State of a compressor on one rank, for ``tf.train.Checkpoint(model=model,
    compressor=CompressorState(compressor))``.

    Every rank must write its own checkpoint to a folder of its own. To save all ranks to one file,
    which any number of ranks can load, use ``compressor.save`` and ``compressor.load`` instead.
    """

    def __init__(self, compressor: TensorflowCompressor) -> None:
        self._compressor = compressor

    def serialize(self) -> bytes:
        return to_bytes(self._compressor.state_dict())

    def deserialize(self, string_value: bytes) -> None:
        """Load the bytes of a checkpoint. Raises CorruptCheckpoint if they are incomplete, and
        RankMismatch if they are of another model, configuration or rank."""
        self._compressor.load_state_dict(from_bytes(string_value))


class SaveCompressor(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that saves a compressor at the end of every epoch. Pass it to ``fit`` on every rank.
    To continue a run, call ``compressor.load(path)`` before ``fit``.

    Parameters
    ----------
    compressor : the compressor of this rank
    path : one file for all ranks; may contain ``{epoch}``, counted from 1 as by ``ModelCheckpoint``
    """

    def __init__(self, compressor: TensorflowCompressor, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._compressor = compressor
        self._path = os.fspath(path)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Value] | None = None) -> None:
        """Save the compressor. Collective."""
        self._compressor.save(self._path.format(epoch=epoch + 1))


class LogMetrics(tf.keras.callbacks.Callback):  # type: ignore[misc] # Keras gives no types
    """Callback that passes the metrics of ``fit`` to the writers of ``telemetry=``, after every
    epoch and after every few batches. The entries of a metric that is an array, such as
    ``F1Score(average=None)``, become metrics ``name/0``, ``name/1``, ...

    Parameters
    ----------
    compression : the compressor of this rank
    every : number of batches between two records; by default ``telemetry_every``. With 0, metrics
        are recorded only after epochs
    """

    def __init__(self, compression: TensorflowCompressor, every: int | None = None) -> None:
        super().__init__()
        self._compression = compression
        self._every = compression.configuration.telemetry_every if every is None else every
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Value] | None = None) -> None:
        """Log the averages over the epoch so far, which Keras passes as metrics after a batch."""
        self._batches += 1
        if self._every and logs and self._batches % self._every == 0:
            self._log(logs)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Value] | None = None) -> None:
        """Log the metrics of an epoch, including those of the validation."""
        if logs:
            self._log(logs)

    def _log(self, logs: Mapping[str, Value]) -> None:
        metrics: dict[str, Value] = {}
        for name, value in logs.items():
            values = np.asarray(value)
            # A metric's name must not end the training.
            tag = f"my_{name}" if name in COMMON_FIELDS else name
            entries = {f"{tag}/{i}": entry for i, entry in enumerate(values.flat)}
            metrics |= entries if values.ndim else {tag: value}
        self._compression.log(**metrics)
