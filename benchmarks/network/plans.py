"""Messages as planned in the run, beside none merged, all merged and the default: predicted, and measured on shaped hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._streams import json_by_line, markdown_table
from benchmarks.network import page, probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.summary import by_round, spread

WAYS = {"none": ",groups=100000", "all": ",groups=1", "default": "", "planned": ",groups=planned"}
"""By the names of ``GroupPlan.predicted_s``: options of a method."""
OURS = "ldte_bs,codec=block16"

Run = Callable[[Cluster, argparse.Namespace, str, str], dict[str, Any]]


def run(options: argparse.Namespace, run_setting: Run) -> None:
    """On 2 hosts and more, one after the other; written out as it comes."""
    options.methods = [OURS + option for option in WAYS.values()]
    Cluster(options.hosts).lay()
    rows: list[dict[str, Any]] = []
    for rate in options.rates:
        for hosts in range(2, options.hosts + 1):
            cluster, shaped = Cluster(hosts), None if rate == "none" else rate
            cluster.shape(shaped)
            wire = page.describe_wire(probe.measure(cluster, shaped))
            for model in options.models:
                for compute in options.compute:
                    result = run_setting(cluster, options, model, compute)
                    where = {"rate": rate, "hosts": hosts, "model": model, "compute": compute, "wire": wire}
                    rows += [{**where, **row, "load": os.getloadavg()[1]} for row in _rows(result)]
                    write(rows, options)
                    print(table(rows[-len(WAYS) :]), flush=True)


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a way, by one setting's result; seconds from a step's first gradient to its last result."""
    plan = result["reports"][OURS + WAYS["planned"]]["plan"]
    planned = by_round(result["rows"], OURS + WAYS["planned"], "exchange")
    rows = []
    for way, option in WAYS.items():
        seconds = by_round(result["rows"], OURS + option, "exchange")
        rows.append(
            {
                "way": way,
                "messages": len(plan["groups"]) if way == "planned" else None,
                "predicted_s": plan["predicted_s"][way],
                "measured_s": spread(seconds),
                "over_predicted": spread(seconds / plan["predicted_s"][way]),
                "times_planned": spread(seconds / planned),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    def told(values: dict[str, float], unit: float = 1.0) -> str:
        median, low, high = (unit * values[name] for name in ("median", "low", "high"))
        digits = 1 if unit > 1 else 2
        return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    cells = [
        [
            f"{row['rate']}, {row['hosts']} hosts, {row['model']}, {row['compute']}",
            row["way"] + (f" ({row['messages']})" if row["messages"] else ""),
            f"{1e3 * row['predicted_s']:.1f}",
            told(row["measured_s"], 1e3),
            told(row["over_predicted"]),
            told(row["times_planned"]),
        ]
        for row in rows
    ]
    heads = ["setting", "messages", "predicted, ms", "measured, ms", "measured / predicted", "times planned"]
    return markdown_table(heads, cells)


INTRODUCTION = """\
# Planned messages on shaped hosts

`scripts/bench-network --plans` makes this page: LDTE-BS over Horovod's own optimizer, its tensors in one message each
("none"; Horovod fuses what is ready at the same time), in one message together ("all"), small neighbours together
("default"), and as `groups="planned"` has measured and decided in the first steps of the same run. All four are predicted by
the plan from what was measured then, before any of these steps was timed; what is timed is from a step's first gradient to its
last result, on the slowest rank. Medians over rounds, with the least and the most; ratios are taken within each round. The
hosts are network namespaces of one machine and share its cores, which real hosts do not.
"""


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """OUTPUT.json and OUTPUT.md."""
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    made_with = page.environment(options)
    text = json_by_line({"made_with": made_with}, {"rows": rows})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    made = ", ".join(f"{name} {value}" for name, value in made_with.items())
    parts = [INTRODUCTION, f"Made with {made}.\n", _in_words(rows) + "\n", table(rows)]
    output.with_suffix(".md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _in_words(rows: list[dict[str, Any]]) -> str:
    """How near predictions are, and how often the plan was the quickest."""
    off = np.array([abs(row["over_predicted"]["median"] - 1) for row in rows])
    settings = {(row["rate"], row["hosts"], row["model"], row["compute"]) for row in rows}
    others = [row for row in rows if row["way"] != "planned"]
    slower = [row for row in others if row["times_planned"]["median"] < 1]
    named = ", ".join(
        f"{row['way']} on {row['hosts']} hosts, {row['model']} ({row['times_planned']['median']:.2f})" for row in slower
    )
    return (
        f"Of {len(rows)} predictions {int((off <= 0.2).sum())} are within 20 % of what was measured; half of them are within "
        f"{100 * float(np.median(off)):.0f} %. In {len(settings)} settings, {len(slower)} of {len(others)} other ways had a "
        f"smaller median than the plan{': ' if named else ''}{named}."
    )
