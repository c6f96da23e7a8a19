"""JSON lines: one record a line, the format that ``hvd-sparse report`` reads."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, open_for_lines
from hvd_sparse.untyped import Report


@WRITERS.register("jsonl")
@dataclass(frozen=True)
class JsonLines(Writer):
    """Write every record as a line of JSON.

    A file that is there is added to, so that a restart loses nothing: whoever reads it drops the
    records that a later run has overtaken.

    Parameters
    ----------
    path : of the file; its folder is made

    Examples
    --------
    A run without a compressor, to be compared with others:

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/dense.jsonl").open()
    ...     sink.log(step=1, loss=2.5)
    ...     sink.close()
    ...     print(pathlib.Path(folder, "dense.jsonl").read_text()[:30])
    {"event": "metrics", "step": 1
    """

    remedy: ClassVar[str] = "look for room on the disk and the rights to its folder"

    path: str = "telemetry.jsonl"

    def open(self, place: Place = Place()) -> JsonLinesFile:  # noqa: B008 - frozen
        return JsonLinesFile(self.path, place)


class JsonLinesFile(Sink):
    """An open file of records.

    Parameters
    ----------
    path : as the writer has it
    place : this rank
    """

    def __init__(self, path: str, place: Place) -> None:
        super().__init__()
        self._file: int | None = open_for_lines(place.path(path), JsonLines.id)

    def write(self, record: Report) -> None:
        if self._file is not None:
            # One call a line: a killed process leaves whole lines, and ranks do not mix theirs.
            os.write(self._file, (json.dumps(record) + "\n").encode())

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
