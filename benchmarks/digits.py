"""Training on scikit-learn's handwritten digits, by every exchange: the work of ``scripts/bench
digits``.

Four ranks are threads of one process.  The network, its gradients and the descent are plain numpy,
so that a run depends on nothing but its seed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.registry import CODECS
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

mpl.use("Agg")
from matplotlib import pyplot as plt

RANKS, HIDDEN, BATCH, RATE = 4, 256, 32, 0.3
DENSITY = 0.01
_TOPK = {"id": "topk", "density": DENSITY}
_SHARED_DRAWS = {"id": "random_k", "density": 0.05, "shared_seed": True}
_CHUNKS = {"id": "chunked", "density": 0.05, "chunk_length": 16}

RUNS: dict[str, dict[str, Any]] = {
    "allgather": {"selector": _TOPK},
    "shared_index": {"selector": _TOPK, "exchange": "shared_index"},
    "shared_index, shared draws": {"selector": _SHARED_DRAWS, "exchange": "shared_index"},
    "shared_index, chunks": {"selector": _CHUNKS, "exchange": "shared_index"},
    "gtopk": {"selector": _TOPK, "exchange": "gtopk"},
    "gtopk, as published": {"selector": _TOPK, "exchange": {"id": "gtopk", "conserving": False}},
    "oktopk": {"selector": _TOPK, "exchange": {"id": "oktopk", "least_entries": 8}},
    "hierarchical, 2 ranks a node": {
        "selector": _TOPK,
        "exchange": {"id": "hierarchical", "ranks_per_node": 2},
    },
}
"""Options of a configuration; each is also run without the residual."""

ROUNDED = {
    f"{codec}, bfloat16": {"selector": _TOPK, "codec": {"id": codec, "values": "bfloat16"}}
    for codec in ("block16", "golomb")
    if codec in CODECS.ids()
}


@dataclass(frozen=True)
class Result:
    """The results of one run's seeds.

    Attributes
    ----------
    accuracies : on the test images, by seed
    asked, achieved : density; of what ranks sent, by the counters of ``stats()``
    """

    name: str
    has_residual: bool
    accuracies: list[float]
    asked: float | None
    achieved: float | None

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))


def run(options: argparse.Namespace) -> int:
    """Train, print the table, write JSON, picture and page."""
    seeds, epochs = (1, 1) if options.quick else (5, 20)
    data = load()
    dense = Result(
        "dense", True, [train(None, seed, epochs, data)[0] for seed in range(seeds)], None, None
    )
    results = [dense]
    cases = [
        (name, described, kept)
        for name, described in {**RUNS, **ROUNDED}.items()
        for kept in (True, False)
    ]
    for name, described, kept in track(cases, "training", transient=True):
        if kept or name in RUNS:
            results.append(results_of(name, described, kept, seeds, epochs, data))
    options.output.mkdir(parents=True, exist_ok=True)
    document = {"ranks": RANKS, "epochs": epochs, "runs": [asdict(result) for result in results]}
    (options.output / "digits.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(results, options.output / "digits.png")
    (options.output / "digits.md").write_text(page(results, epochs))
    Console(width=110).print(table_of(results))
    print(f"digits.json, digits.png and digits.md are in {options.output}")
    return 0


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train images and labels, test images and labels: the split of the examples."""
    digits = load_digits()
    images = (digits.images / 16).reshape(-1, 64).astype(np.float32)
    parts = train_test_split(
        images, digits.target, test_size=450, random_state=0, stratify=digits.target
    )
    return parts[0], parts[2], parts[1], parts[3]


def results_of(
    name: str, described: dict[str, Any], kept: bool, seeds: int, epochs: int, data: Any
) -> Result:
    options = {"allow_dense": False, "min_numel": 1, "compress_1d": True, **described}
    if not kept:
        options["memory"] = "none"
    configuration = Configuration.create(**options)
    outcomes = [train(configuration, seed, epochs, data) for seed in range(seeds)]
    reports = [report for _, report in outcomes]
    achieved = float(np.mean([report["density_achieved"] for report in reports]))
    return Result(
        name, kept, [accuracy for accuracy, _ in outcomes], configuration.density(0), achieved
    )


def train(
    configuration: Configuration | None, seed: int, epochs: int, data: Any
) -> tuple[float, Any]:
    """Accuracy on the test images, and rank 0's report; ``None`` trains by a dense sum."""
    images, labels, test_images, test_labels = data
    rng = np.random.default_rng(seed)
    start = {
        "w1": (rng.normal(size=(64, HIDDEN)) * np.sqrt(2 / 64)).astype(np.float32),
        "w2": (rng.normal(size=(HIDDEN, 10)) * np.sqrt(1 / HIDDEN)).astype(np.float32),
        "b1": np.zeros(HIDDEN, np.float32),
        "b2": np.zeros(10, np.float32),
    }
    specs = [TensorSpec(key, value.shape, "float32") for key, value in start.items()]

    def script(collective: Any) -> tuple[float, Any]:
        weights = {key: value.copy() for key, value in start.items()}
        session = Session(configuration, specs, collective) if configuration is not None else None
        order = np.random.default_rng([seed, 7])
        for _ in range(epochs):
            shuffled = order.permutation(len(images))
            for first in range(0, len(images) - BATCH * RANKS + 1, BATCH * RANKS):
                mine = shuffled[
                    first + collective.rank * BATCH : first + (collective.rank + 1) * BATCH
                ]
                gradients = gradients_of(weights, images[mine], labels[mine])
                if session is not None:
                    reduced = session.reduce(gradients)
                else:
                    reduced = {
                        k: collective.allreduce(g, k).wait(None) / RANKS
                        for k, g in gradients.items()
                    }
                for key, gradient in reduced.items():
                    weights[key] -= np.float32(RATE) * gradient
        hits = forward(weights, test_images)[1].argmax(1) == test_labels
        return float(hits.mean()), session.step.stats.report(None) if session is not None else None

    outcome: tuple[float, Any] = LocalWorld(RANKS, timeout_s=600.0).run(script)[0]
    return outcome


def forward(weights: dict[str, np.ndarray], images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(images @ weights["w1"] + weights["b1"], 0)
    return hidden, hidden @ weights["w2"] + weights["b2"]


def gradients_of(
    weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the gradients of the mean cross entropy of one batch."""
    hidden, logits = forward(weights, images)
    likely = np.exp(logits - logits.max(1, keepdims=True))
    error = likely / likely.sum(1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    back = (error @ weights["w2"].T) * (hidden > 0)
    gradients = {
        "w1": images.T @ back,
        "w2": hidden.T @ error,
        "b1": back.sum(0),
        "b2": error.sum(0),
    }
    return {key: gradient.astype(np.float32) for key, gradient in gradients.items()}


HEADS = ("run", "residual", "density asked", "sent", "accuracy", "std", "within one std of dense")


def _rows(results: list[Result]) -> list[list[str]]:
    dense = results[0]
    bar = dense.mean - float(np.std(dense.accuracies, ddof=1 if len(dense.accuracies) > 1 else 0))
    rows = []
    for result in results:
        spread = float(np.std(result.accuracies, ddof=1 if len(result.accuracies) > 1 else 0))
        asked = "" if result.asked is None else f"{result.asked:g}"
        sent = "" if result.achieved is None else f"{result.achieved:.4f}"
        kept = "kept" if result.has_residual else "thrown away"
        verdict = "yes" if result.mean >= bar else "no"
        rows.append(
            [result.name, kept, asked, sent, f"{result.mean:.2%}", f"{spread:.2%}", verdict]
        )
    return rows


def table_of(results: list[Result]) -> Table:
    table = Table(title="accuracy on 450 test images, mean over the seeds")
    for heading in HEADS:
        table.add_column(heading)
    for row in _rows(results):
        table.add_row(*row)
    return table


def draw(results: list[Result], path: Any) -> None:
    """Draw every seed's accuracy, a row a run, before the range of the dense runs."""
    names = list(dict.fromkeys(result.name for result in results))
    dense = results[0]
    spread = float(np.std(dense.accuracies, ddof=1 if len(dense.accuracies) > 1 else 0))
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(names) + 1.4))
    axes.axvspan(
        100 * (dense.mean - spread),
        100 * (dense.mean + spread),
        color="#dddddd",
        label="dense, one std",
    )
    for kept, colour, label in (
        (True, "#0072b2", "residual kept"),
        (False, "#d55e00", "thrown away"),
    ):
        points = [
            (100 * a, names.index(r.name))
            for r in results
            if r.has_residual is kept
            for a in r.accuracies
        ]
        if points:
            axes.plot(*zip(*points), "o", color=colour, alpha=0.7, markersize=4, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy, %")
    axes.legend(frameon=False, fontsize="small", loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)


def page(results: list[Result], epochs: int) -> str:
    """Return the page in Markdown."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "|".join("---" for _ in HEADS) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(results)]
    return "\n".join(
        [
            "# Accuracy by exchange",
            "",
            "`scripts/bench digits` makes this page: scikit-learn's digits, a network of 64, "
            "256 and 10 units, plain gradient",
            f"descent at {RATE}, {RANKS} ranks with batches of {BATCH}, {epochs} epochs, "
            f"{len(results[0].accuracies)} seeds.",
            "Every tensor is compressed at every step; *sent* is counted, not asked. The bar is "
            "the dense mean less one standard",
            "deviation.",
            "",
            "![accuracies](digits.png)",
            "",
            *lines,
            "",
        ]
    )
