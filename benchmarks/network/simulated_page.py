"""The page of predicted and measured steps: tables, counts and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks._streams import json_by_line, markdown_table
from benchmarks.network import page

NEAR = 0.2
"""Predictions are meant to be so near to what is measured."""


def table(rows: list[dict[str, Any]], name: str = "") -> str:
    """One line a row; ``name`` is "" for costs of as many hosts, "scaled_" for those of the fewest."""
    cells = [
        [
            f"{row['rate']}, {row['hosts']} hosts, {row['model']}, {row['compute']}",
            row["way"] + (f", {row['density']:g}" if row["density"] else ""),
            f"{1e3 * row[f'{name}predicted_s']:,.1f}",
            _told(row["measured_s"], 1e3, 1),
            _told(row[f"{name}over_predicted"], 1.0, 2),
        ]
        for row in rows
    ]
    return markdown_table(["setting", "way", "predicted, ms", "measured, ms", "measured / predicted"], cells)


def _told(values: dict[str, float], unit: float, digits: int) -> str:
    median, low, high = (f"{unit * values[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


INTRODUCTION = ""


def count(rows: list[dict[str, Any]], name: str = "") -> str:
    off = np.array([abs(row[f"{name}over_predicted"]["median"] - 1) for row in rows])
    return f"{int((off <= NEAR).sum())} of {len(rows)}"


def write(rows: list[dict[str, Any]], measured: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """OUTPUT.json, OUTPUT.md and OUTPUT.png."""
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    made_with = page.environment(options)
    text = json_by_line({"made_with": made_with}, {"settings": measured, "rows": rows})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
