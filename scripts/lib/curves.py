"""Draw the learning curves of a method as SVG, from the page of curves, for the method's page."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 44, 150, 12, 34
COLOURS = {"dense": "#78909c", "0.01": "#00897b", "0.001": "#d9822b", "": "#00897b"}

Curve = list[tuple[float, float]]


def curves_of(name: str) -> dict[str, Curve]:
    """Return the mean curves of dense training and of a method.

    Parameters
    ----------
    name : of the method

    Returns
    -------
    dict
        From "dense", or the density ("" if the method has none), to pairs of a step and a test
        accuracy in percent.
    """
    document = json.loads((RESULTS / "curves.json").read_text(encoding="utf-8"))
    found: dict[str, list[Curve]] = defaultdict(list)
    for each in document["runs"]:
        line = each["run"]["line"]
        whose = line["method"].partition(",")[0]
        if whose in ("dense", name):
            label = "dense" if whose == "dense" else f"{line['density'] or ''}"
            found[label].append(each["result"]["curve"])
    means = {
        label: [(at[0][0], sum(score for _, score in at) / len(at)) for at in zip(*curves)]
        for label, curves in found.items()
    }
    return {label: means[label] for label in ("dense", "0.01", "0.001", "") if label in means}


def drawn(name: str) -> str:
    """Return the picture as SVG in one line, as Markdown requires."""
    curves = curves_of(name)
    last = max(step for curve in curves.values() for step, _ in curve)

    def place(step: float, score: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / last
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (100 - score) / 100

    title = f"Test accuracy of {name} beside dense, percent, over steps"
    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'style="max-width:40rem;width:100%" font-family="sans-serif" font-size="12">'
    ]
    for score in (0, 50, 100):
        y = place(0, score)[1]
        out.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity=".2"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor">'
            f"{score:g}</text>"
        )
    for step in (0, last):
        x = place(step, 0)[0]
        out.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="currentColor">'
            f"{step:g}</text>"
        )
    places = _apart([place(*curve[-1])[1] for curve in curves.values()])
    for (label, curve), y in zip(curves.items(), places):
        points = " ".join("{:.1f},{:.1f}".format(*place(*each)) for each in curve)
        words = label if label == "dense" else f"{name} {label}".strip()
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[label]}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT + 6}" y="{y + 4:.1f}" fill="{COLOURS[label]}">{words}</text>'
        )
    return "".join([*out, "</svg>"])


def _apart(heights: list[float], least: float = 14.0) -> list[float]:
    """Return heights of the labels at which no label covers another."""
    found = dict.fromkeys(range(len(heights)), 0.0)
    reached = float("-inf")
    for number in sorted(found, key=lambda number: heights[number]):
        found[number] = reached = max(heights[number], reached + least)
    return list(found.values())


def table_of(name: str) -> str:
    """Return the head and the rows of dense and of the method from the page's table."""
    page = (RESULTS / "curves.md").read_text(encoding="utf-8")
    head = re.findall(r"^\| method \|.*\n\| -.*$", page, re.M)
    return "\n".join([*head, *re.findall(rf"^\| `(?:dense|{name})(?:,[^`]*)?` \|.*$", page, re.M)])
