"""Summaries of measured steps: medians, spreads and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.network.spans import PHASES


def by_round(rows: list[dict[str, Any]], method: str) -> np.ndarray:
    rounds = sorted({row["round"] for row in rows})
    return np.array(
        [
            np.median(
                [row["total"] for row in rows if row["method"] == method and row["round"] == r]
            )
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
    return spread(by_round(rows, slower) / by_round(rows, faster))


def phases(rows: list[dict[str, Any]], method: str) -> dict[str, float]:
    """Return the mean milliseconds of each phase; "other" is the rest of the step."""
    steps = [row for row in rows if row["method"] == method]
    times = {name: 1e3 * float(np.mean([row[name] for row in steps])) for name in PHASES}
    total = 1e3 * float(np.mean([row["mean_total"] for row in steps]))
    return {**times, "other": max(0.0, total - sum(times.values()))}


def summarize(setting: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of every method; the first method is dense, the last one ours."""
    rows = setting["rows"]
    methods = list(
        dict.fromkeys(row["method"] for row in sorted(rows, key=lambda row: row["round"]))
    )
    summaries = {}
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        summaries[method] = {
            "step_ms": spread(1e3 * by_round(rows, method)),
            "times_ours": ratio(rows, method, methods[-1]),
            "over_first": ratio(rows, methods[0], method),
            "worked_ms": 1e3
            * float(np.mean([r["all_threads"] - r.get("send_processor", 0.0) for r in mine])),
            "received_bytes": float(np.mean([row["received"] for row in mine])),
            "steps": len(mine),
        }
        if "select" in mine[0]:
            summaries[method]["phases_ms"] = phases(rows, method)

    return summaries
