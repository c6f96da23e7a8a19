"""Compressors' states where TensorFlow and Keras programs look for checkpoints."""

from __future__ import annotations

import os

import tensorflow as tf

from hvd_sparse.state.checkpoint_file import from_bytes, to_bytes
from hvd_sparse.tensorflow.compressor import TensorflowCompressor


class CompressorState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """State of one rank, for ``tf.train.Checkpoint``.

    A state belongs to its rank, so every rank writes a checkpoint of its own, in a folder of its
    own; ``compressor.save`` and ``compressor.load`` put all ranks' states into one file, and take
    them apart for any number of ranks.

    Examples
    --------
    With a program's own model, optimizer and compressor::

        checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, compressor=CompressorState(compressor)
        )
    """

    def __init__(self, compressor: TensorflowCompressor) -> None:
        self._compressor = compressor

    def serialize(self) -> bytes:
        """Return what a checkpoint holds."""
        return to_bytes(self._compressor.state_dict())

    def deserialize(self, string_value: bytes) -> None:
        """Take the state from what a checkpoint holds.

        Raises
        ------
        CorruptCheckpoint : it is not whole
        RankMismatch : it is another model's, configuration's or rank's
        """
        self._compressor.load_state_dict(from_bytes(string_value))


class SaveCompressor(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that saves a compressor at the end of every epoch; give it to ``fit`` on every rank.

    Parameters
    ----------
    compressor : whose ``save`` is called
    path : of the one file for all ranks; may hold ``{epoch}``, as ``ModelCheckpoint``'s does, which
        counts from 1

    ``compressor.load(path)``, before ``fit``, is the way back.
    """

    def __init__(self, compressor: TensorflowCompressor, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._compressor = compressor
        self._path = os.fspath(path)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save the compressor.  Collective."""
        self._compressor.save(self._path.format(epoch=epoch + 1))
