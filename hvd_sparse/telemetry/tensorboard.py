from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat
from hvd_sparse.types import Report, Value


@WRITERS.register("tensorboard")
@dataclass(frozen=True)
class TensorBoard(Writer):
    """Write scalars for TensorBoard, with the event writer of PyTorch or TensorFlow.

    Tags are for example ``density_achieved/layer1.weight`` and ``bytes_sent/total``. The tags of
    the program's own metrics are their names.

    Parameters
    ----------
    path : path of the folder of event files, which may begin with ``~``, or the address of a
        folder that the framework's event writer can reach, such as ``gs://bucket/run``
    """

    remedy: ClassVar[str] = "check the free space on the disk and the permissions of the folder"

    path: str = "runs/hvd_sparse"

    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        folder = place.path(self.path)
        # If both frameworks are installed, prefer the one that this process has already imported.
        boards = {("torch", "tensorboard"): torch_board, ("tensorflow",): tensorflow_board}
        for packages in sorted(boards, key=lambda names: names[0] not in sys.modules):
            if all(map(importlib.util.find_spec, packages)):
                return boards[packages](folder)
        raise InvalidOption(
            "telemetry writer 'tensorboard' needs torch with tensorboard, or TensorFlow: "
            "pip install tensorboard"
        )


def torch_board(folder: str) -> Sink:
    from torch.utils.tensorboard import SummaryWriter

    writer: Value = SummaryWriter(folder)

    def write(record: Report) -> None:
        if record["event"] == "run":
            writer.add_text("hvd_sparse", _as_code(record), record["step"])
            return
        for tag, value in flat(record).items():
            writer.add_scalar(tag, value, record["step"], walltime=record["time"])
        writer.flush()

    return Sink(write, writer.close)


def tensorflow_board(folder: str) -> Sink:
    import tensorflow as tf

    writer: Value = tf.summary.create_file_writer(folder)

    def write(record: Report) -> None:
        # Use the host, whatever device trains, because these are only a few numbers.
        with tf.device("/CPU:0"), writer.as_default():
            if record["event"] == "run":
                tf.summary.text("hvd_sparse", _as_code(record), step=record["step"])
                return
            for tag, value in flat(record).items():
                tf.summary.scalar(tag, value, step=record["step"])
        writer.flush()

    return Sink(write, writer.close)


def _as_code(record: Report) -> str:
    return textwrap.indent(json.dumps(record, indent=2), "    ")
