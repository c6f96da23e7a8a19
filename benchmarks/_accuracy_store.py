"""Runs of ``hvd-sparse bench accuracy`` that are made already, in one JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks._accuracy_runs import Line, Run


class Store:
    """Results by run, kept in a file that has a run a line.

    Parameters
    ----------
    path : of the file; made with the first result
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[Run, dict[str, Any]] = {}
        self._read()

    def add(self, run: Run, result: dict[str, Any]) -> None:
        """Keep a result, beside those that others have written in the meantime."""
        self._read()
        self.results[run] = result
        rows = [
            json.dumps({"run": asdict(run), "result": self.results[run]})
            for run in sorted(self.results, key=lambda run: run.key)
        ]
        partial = self._path.with_suffix(".partial")
        partial.write_text('{"runs": [\n' + ",\n".join(rows) + "\n]}\n")
        partial.replace(self._path)

    def _read(self) -> None:
        if self._path.exists():
            for row in json.loads(self._path.read_text())["runs"]:
                described = row["run"]
                run = Run(Line(**described["line"]), described["rate"], described["seed"])
                self.results[run] = row["result"]
