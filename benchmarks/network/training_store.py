"""Whole trainings and their results, which are stored so that no training is repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

PEER_DENSITY = 0.01
"""Density of exact top-k and DGC, the one that GRACE's authors use."""
TASK_NAMES = ("perceptron", "words", "words_epsilon", "vgg")


@dataclass(frozen=True)
class Training:
    """One training."""

    task: str
    method: str
    hosts: int
    wire: str  # a rate as tc writes it, or "none"
    density: float  # of peers; ours follows from the steps
    steps: int
    rate: float
    seed: int = 0


class Store:
    """Results by training, read from the page's JSON file. Stored trainings are not repeated."""

    def __init__(self, output: Path) -> None:
        self.results: dict[Training, dict[str, Any]] = {}
        self.notes: list[str] = []  # paragraphs of the page
        path = output.with_suffix(".json")
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            self.notes = stored["notes"]
            for row in stored["runs"]:
                self.results[Training(**row["training"])] = row["result"]

    def rows(self) -> list[dict[str, Any]]:
        runs = sorted(self.results.items(), key=lambda run: str(sorted(asdict(run[0]).items())))
        return [{"training": asdict(run), "result": result} for run, result in runs]

    def at_another_wire(self, wanted: Training) -> dict[str, Any] | None:
        """Return the result of the same training with another bandwidth; None if there is none."""
        same = (r for run, r in self.results.items() if replace(run, wire=wanted.wire) == wanted)
        return next(same, None)

    def at_any_rate(self, wanted: Training) -> Iterator[tuple[Training, dict[str, Any]]]:
        for run, result in self.results.items():
            if replace(run, rate=wanted.rate) == wanted:
                yield run, result


def best(tried: Sequence[tuple[Training, dict[str, Any]]], *, is_loss: bool) -> float:
    """Return the learning rate with the best score. A loss of NaN is the worst score."""

    def score(each: tuple[Training, dict[str, Any]]) -> float:
        found = each[1]["score"]
        return -math.inf if math.isnan(found) else -found if is_loss else found

    return max(tried, key=score)[0].rate


def tasks() -> dict[str, Any]:
    from benchmarks.network.tasks import TASKS  # with torch

    return TASKS
