"""The page of simulated and measured steps: tables, counts and a picture."""

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
from hvd_sparse.cli.simulate import COLOURS

NEAR = 0.2
"""Predictions are meant to be so near to what is measured."""
FEWEST = 2
"""Hosts, whose costs are also taken to more."""
OWN, SCALED = "", "scaled_"
"""Costs of as many hosts, and of the fewest."""

INTRODUCTION = """\
# Simulated steps on shaped hosts

`scripts/bench-network --simulated` makes this page. For every row `hvd-sparse advise` has measured
costs on the same hosts just before, all ranks at work at once, and `hvd-sparse simulate` has been
given these and the backward pass that is replayed (`--costs`, `--model`; asleep as `--apart`):
nothing else. Measured is a step over Horovod's own optimizer, from the beginning of the backward
pass to the last averaged gradient, on the slowest rank: dense and fp16 as Horovod sends them, the
others LDTE-BS by the exchange and at the density that are named, with the messages that
`groups="planned"` finds. Every way has a launch of its own. Medians over rounds, with the least and
the most in brackets. The hosts are network namespaces of one machine and share its cores, which
real hosts do not: of three and four ranks on two cores, each waits for the processor too.
"""
FURTHER = f"""\
## Costs of {FEWEST} hosts taken to more

The same steps, predicted from what was measured on {FEWEST} hosts at that rate: starts grow with
the hops of Gloo's rings, bytes and computing take as long. That more hosts share the same cores is
not in such costs.
"""


def table(rows: list[dict[str, Any]], costs: str = OWN) -> str:
    """One line a row."""
    cells = [
        [
            f"{row['rate']}, {row['hosts']} hosts, {row['model']}, {row['compute']}",
            row["way"] + (f", {row['density']:g}" if row["density"] else ""),
            f"{1e3 * row[f'{costs}predicted_s']:,.1f}",
            _told(row["measured_s"], 1e3, 1),
            _told(row[f"{costs}over_predicted"], 1.0, 2),
        ]
        for row in rows
    ]
    return markdown_table(
        ["setting", "way", "predicted, ms", "measured, ms", "measured / predicted"], cells
    )


def _told(values: dict[str, float], unit: float, digits: int) -> str:
    median, low, high = (f"{unit * values[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def in_words(rows: list[dict[str, Any]], costs: str = OWN) -> str:
    """Return in words how many predictions are near, in all and by method."""
    by_way = {
        way: [row for row in rows if row["way"] == way]
        for way in dict.fromkeys(row["way"] for row in rows)
    }
    counts = {way: _count(found, costs) for way, found in by_way.items()}
    told = ", ".join(f"{way} {near} of {len(by_way[way])}" for way, near in counts.items())
    half = 100 * float(
        np.median([abs(row[f"{costs}over_predicted"]["median"] - 1) for row in rows])
    )
    return (
        f"Of {len(rows)} predictions {sum(counts.values())} are within {NEAR:.0%} of what was "
        f"measured ({told}); half of them "
        f"are within {half:.0f} %.".replace("20%", "20 %")
    )


def _count(rows: list[dict[str, Any]], costs: str) -> int:
    return sum(abs(row[f"{costs}over_predicted"]["median"] - 1) <= NEAR for row in rows)


def write(
    rows: list[dict[str, Any]], settings: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    """OUTPUT.json, with the costs and every step's numbers, OUTPUT.md and OUTPUT.png."""
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    given = {*page.OF_A_RUN, "density"}
    made_with = {
        name: value for name, value in page.environment(options).items() if name not in given
    }
    text = json_by_line({"made_with": made_with}, {"rows": rows, "settings": settings})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    output.with_suffix(".md").write_text(
        render(rows, settings, made_with, output), encoding="utf-8"
    )
    draw(rows, output.with_suffix(".png"))


def render(
    rows: list[dict[str, Any]],
    settings: list[dict[str, Any]],
    made_with: dict[str, Any],
    output: Path,
) -> str:
    """Markdown."""
    made = ", ".join(f"{name} {value}" for name, value in made_with.items())
    wires = [
        f"* {s['rate']}, {s['hosts']} hosts, {s['model']}, {s['compute']}: {s['wire']}; load of "
        f"the machine {s['load']:.1f}; "
        f"other machines took {s['stolen']:.1%} of the cores' time; cores of a rank while all "
        f"work: {s['costs']['cores']:.2f}"
        for s in settings
    ]
    parts = [
        INTRODUCTION,
        f"Made by\n\n{page.commands(settings)}\n\nwith {made}.\n",
        in_words(rows) + "\n",
        f"![predicted and measured]({output.name}.png)\n",
    ]
    parts += [table(rows) + "\n"]
    further = [row for row in rows if row["hosts"] > FEWEST]
    if further:
        parts += [FURTHER, in_words(further, SCALED) + "\n", table(further, SCALED) + "\n"]
    return "\n".join([*parts, "## Wires\n", *wires]) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Measured over predicted, with the band that is meant."""
    figure, axis = plt.subplots(figsize=(5.6, 5.2), layout="constrained")
    ends = np.array([[row["predicted_s"], row["measured_s"]["median"]] for row in rows])
    line = 1e3 * np.array([0.8 * ends.min(), 1.25 * ends.max()])
    axis.fill_between(
        line, (1 - NEAR) * line, (1 + NEAR) * line, color="#dddddd", label="within 20 %"
    )
    axis.plot(line, line, color="#888888", linewidth=0.8)
    for way in dict.fromkeys(row["way"] for row in rows):
        here = [row for row in rows if row["way"] == way]
        middle, low, high = (
            1e3 * np.array([row["measured_s"][k] for row in here])
            for k in ("median", "low", "high")
        )
        x = [1e3 * row["predicted_s"] for row in here]
        axis.errorbar(
            x,
            middle,
            [middle - low, high - middle],
            fmt="o",
            ms=4,
            lw=0.8,
            color=COLOURS.get(way),
            label=way,
        )
    axis.set(
        xscale="log", yscale="log", xlabel="predicted, ms a step", ylabel="measured, ms a step"
    )
    axis.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)
