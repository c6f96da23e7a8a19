"""Runs of a bench that are made already, in one JSON file, so that it goes on where it was
stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks._accuracy_runs import Line, Run

Key = TypeVar("Key")


def read_run(described: dict[str, Any]) -> Run:
    """Return the run of the accuracy bench that a file describes."""
    return Run(Line(**described["line"]), described["rate"], described["seed"])


class Store(Generic[Key]):
    """Results by run, kept in a file that has a run a line.

    Parameters
    ----------
    path : of the file; made with the first result
    read : makes a run, which is a dataclass, of what the file has of it
    """

    def __init__(self, path: Path, read: Callable[[dict[str, Any]], Key] = read_run) -> None:
        self._path = path
        self._read_key = read
        self.results: dict[Key, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._read()

    def add(self, run: Key, result: dict[str, Any]) -> None:
        """Keep a result, beside those that others have written in the meantime; by any thread."""
        with self._lock:
            self._read()
            self.results[run] = result
            described = {json.dumps(asdict(run), sort_keys=True): run for run in self.results}
            rows = [
                json.dumps({"run": asdict(run), "result": self.results[run]})
                for _, run in sorted(described.items())
            ]
            partial = self._path.with_suffix(".partial")
            partial.write_text('{"runs": [\n' + ",\n".join(rows) + "\n]}\n")
            partial.replace(self._path)

    def _read(self) -> None:
        if self._path.exists():
            for row in json.loads(self._path.read_text())["runs"]:
                self.results[self._read_key(row["run"])] = row["result"]
