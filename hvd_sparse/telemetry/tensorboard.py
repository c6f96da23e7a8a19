"""TensorBoard: scalars, by torch's SummaryWriter or TensorFlow's ``tf.summary``."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.untyped import Report, Value


@WRITERS.register("tensorboard")
@dataclass(frozen=True)
class TensorBoard(Writer):
    """Write scalars for TensorBoard, with the writer of the framework that trains.

    Tags are ``density_achieved/layer1.weight`` and ``bytes_sent/total``; a program's metrics have
    their own names.

    Parameters
    ----------
    path : of the folder of events
    """

    remedy: ClassVar[str] = "look for room on the disk and the rights to its folder"

    path: str = "runs/hvd_sparse"

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        folder = str(place.path(self.path))
        # Of the two that can be there, the one that this process has loaded costs nothing more.
        order = sorted(("torch", "tensorflow"), key=lambda name: name not in sys.modules)
        for name in order:
            if name == "torch" and all(map(_is_there, ("torch", "tensorboard"))):
                return TorchBoard(folder)
            if name == "tensorflow" and _is_there("tensorflow"):
                return TensorflowBoard(folder)
        raise InvalidOption(
            "telemetry writer 'tensorboard' needs torch with tensorboard, or TensorFlow: "
            "pip install tensorboard"
        )


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


class TorchBoard(Sink):
    """A folder of events, written by torch."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Value = SummaryWriter(folder)

    def write(self, record: Report) -> None:
        if record["event"] == "run":
            self._writer.add_text("hvd_sparse", _as_code(record), record["step"])
            return
        for tag, value in flat(record).items():
            self._writer.add_scalar(tag, value, record["step"], walltime=record["time"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TensorflowBoard(Sink):
    """A folder of events, written by TensorFlow."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        import tensorflow as tf

        self._tf: Value = tf
        self._writer: Value = tf.summary.create_file_writer(folder)

    def write(self, record: Report) -> None:
        summary = self._tf.summary
        # On the host, whatever device trains: these are a few numbers.
        with self._tf.device("/CPU:0"), self._writer.as_default():
            if record["event"] == "run":
                summary.text("hvd_sparse", _as_code(record), step=record["step"])
                return
            for tag, value in flat(record).items():
                summary.scalar(tag, value, step=record["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _as_code(record: Report) -> str:
    """Return a record as Markdown that TensorBoard shows letter for letter."""
    lines = json.dumps(record, indent=2).splitlines()
    return "\n".join(f"    {line}" for line in lines)
