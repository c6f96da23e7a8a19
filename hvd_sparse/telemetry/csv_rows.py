"""CSV: a row a tensor and record, for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.registry import WRITERS
from hvd_sparse.telemetry.contract import Place, Sink, Writer, flat, open_for_lines
from hvd_sparse.telemetry.fields import FIELDS
from hvd_sparse.untyped import Report

COLUMNS = ("step", "seconds", "tensor", *FIELDS, "metric", "value")


@WRITERS.register("csv")
@dataclass(frozen=True)
class Csv(Writer):
    """Write a row a tensor and record, and one for the total; a row a metric of the program.

    A file that is there is added to.

    Parameters
    ----------
    path : of the file; its folder is made
    """

    remedy: ClassVar[str] = "look for room on the disk and the rights to its folder"

    path: str = "telemetry.csv"

    def open(self, place: Place = Place()) -> CsvFile:  # noqa: B008 - frozen
        return CsvFile(self.path, place)


class CsvFile(Sink):
    """An open file of rows.

    Parameters
    ----------
    path : as the writer has it
    place : this rank
    """

    def __init__(self, path: str, place: Place) -> None:
        super().__init__()
        self._file: int | None = open_for_lines(place.path(path), Csv.id)
        if os.fstat(self._file).st_size == 0:
            self._put([dict(zip(COLUMNS, COLUMNS))])

    def write(self, record: Report) -> None:
        if record["event"] == "run":
            return
        when = {"step": record["step"], "seconds": record["seconds"]}
        if record["event"] == "metrics":
            self._put([{**when, "metric": n, "value": v} for n, v in flat(record).items()])
            return
        whose = {"total": record["total"], **record["tensors"]}
        self._put([{**when, "tensor": key, **values} for key, values in whose.items()])

    def _put(self, rows: list[Report]) -> None:
        if self._file is not None:
            text = io.StringIO()
            csv.DictWriter(text, COLUMNS, extrasaction="ignore").writerows(rows)
            os.write(self._file, text.getvalue().encode())

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
