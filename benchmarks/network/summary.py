"""Summaries of measured steps: medians, spreads and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import bootstrap

from benchmarks.network.spans import PHASES


def by_round(rows: list[dict[str, Any]], method: str, what: str = "total") -> np.ndarray:
    """The median of each round [rounds]."""
    rounds = sorted({row["round"] for row in rows})
    return np.array(
        [
            np.median([row[what] for row in rows if row["method"] == method and row["round"] == r])
            for r in rounds
        ]
    )


def spread(values: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "low": float(values.min()),
        "high": float(values.max()),
    }


def ratio(rows: list[dict[str, Any]], slower: str, faster: str) -> dict[str, float]:
    """Return how many times longer a step of ``slower`` takes: median, least and most over the
    rounds."""
    return spread(by_round(rows, slower) / by_round(rows, faster))


def interval(slower: np.ndarray, faster: np.ndarray) -> dict[str, float]:
    """The ratio of two medians over the same rounds, and where it lies in 95 of 100 cases:
    bootstrapped over the rounds."""

    def of_medians(upper: np.ndarray, lower: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.median(upper, axis=axis) / np.median(lower, axis=axis))

    found = bootstrap(
        (slower, faster), of_medians, paired=True, vectorized=True, method="percentile", rng=7
    )
    low, high = (float(end) for end in found.confidence_interval)
    return {"median": float(of_medians(slower, faster)), "low": low, "high": high}


def phases(rows: list[dict[str, Any]], method: str) -> dict[str, float]:
    """Mean milliseconds of a rank by phase in the method's steps; "other" is the rest of the rank's
    step."""
    steps = [row for row in rows if row["method"] == method]
    times = {name: 1e3 * float(np.mean([row[name] for row in steps])) for name in PHASES}
    total = 1e3 * float(np.mean([row["mean_total"] for row in steps]))
    return {**times, "other": max(0.0, total - sum(times.values()))}


def processor(rows: list[dict[str, Any]], method: str) -> dict[str, float]:
    """Mean milliseconds of the processor that a rank's training thread uses, by phase."""
    steps = [row for row in rows if row["method"] == method]
    return {
        name: 1e3 * float(np.mean([row[f"{name}_processor"] for row in steps])) for name in PHASES
    }


def summarize(setting: dict[str, Any]) -> dict[str, Any]:
    """JSON-able: of every method of a setting, its times, phases, bytes and ratio to the last one,
    which is ours."""
    rows = setting["rows"]
    methods = list(
        dict.fromkeys(row["method"] for row in sorted(rows, key=lambda row: row["round"]))
    )
    ours = methods[-1]
    return {
        method: {
            "step_ms": spread(1e3 * by_round(rows, method)),
            "times_ours": ratio(rows, method, ours),
            "phases_ms": phases(rows, method),
            "processor_ms": processor(rows, method),
            "worked_ms": 1e3
            * float(
                np.mean(
                    [r["all_threads"] - r["send_processor"] for r in rows if r["method"] == method]
                )
            ),
            "received_bytes": float(
                np.mean([row["received"] for row in rows if row["method"] == method])
            ),
            "steps": sum(row["method"] == method for row in rows),
        }
        for method in methods
    }
