"""Results of runs, one in each line of a JSON Lines file, so that a benchmark can continue."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy.training import Line, Run

Results = dict[Run, dict[str, Any]]


def key_of(run: Run) -> str:
    return json.dumps(_described(run))


def run_of(row: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    told = dict(row)
    line = Line(told.pop("task"), told.pop("optimizer"), told.pop("rule"), told.pop("steps"))
    run = Run(line, told.pop("rate"), told.pop("seed"), told.pop("is_real", False))
    return run, told


def read_results(path: Path) -> Results:
    texts = path.read_text().splitlines() if path.exists() else []
    return dict(run_of(json.loads(text)) for text in texts)


def add_result(path: Path, run: Run, result: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps({**_described(run), **result}) + "\n")


def _described(run: Run) -> dict[str, Any]:
    described = {**asdict(run.line), "rate": run.rate, "seed": run.seed}
    return {**described, "is_real": True} if run.is_real else described
