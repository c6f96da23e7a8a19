"""Messages as planned in the run, beside none merged, all merged and the default: predicted, and
measured on shaped hosts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._streams import markdown_table
from benchmarks.network import page, probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.groupings import PLANNED, WAYS
from benchmarks.network.summary import by_round, interval, spread
from hvd_sparse.density_text import plain_density, spell_density

WHICH = ("rate", "hosts", "model", "compute", "density", "way")
"""What tells rows apart."""

Run = Callable[[Cluster, argparse.Namespace, str, str], dict[str, Any]]
Rows = list[dict[str, Any]]


def run(options: argparse.Namespace, run_setting: Run) -> None:
    """Measure on 2 hosts and more, one number after the other, and write each result as it
    comes."""
    Cluster(options.hosts).lay()
    rows = page.kept(options, "rows")
    for rate in options.rates:
        for hosts in range(options.least_hosts, options.hosts + 1):
            cluster, shaped = Cluster(hosts), None if rate == "none" else rate
            cluster.shape(shaped)
            wire = page.describe_wire(probe.measure(cluster, shaped))
            for model in options.models:
                for compute in options.compute:
                    result = run_setting(cluster, options, model, compute)
                    where = {
                        "rate": rate,
                        "hosts": hosts,
                        "model": model,
                        "compute": compute,
                        "wire": wire,
                    }
                    where |= {
                        "density": plain_density(options.density),
                        "command": page.command(),
                        "load": os.getloadavg()[1],
                    }
                    found = [{**where, **row} for row in rows_of(result)]
                    rows = page.joined(rows, found, WHICH)
                    write(rows, options)
                    print(table(found), flush=True)


def rows_of(result: dict[str, Any]) -> Rows:
    """A row a way, by one setting's result; seconds from a step's first gradient to its last
    result."""
    plan = result["reports"][PLANNED]["plan"]
    planned = by_round(result["rows"], PLANNED, "exchange")
    rows = []
    for way in WAYS:
        seconds = by_round(result["rows"], way, "exchange")
        rows.append(
            {
                "way": way,
                "messages": len(plan["groups"]) if way == PLANNED else None,
                "predicted_s": plan["predicted_s"][way],
                "measured_s": spread(seconds),
                "over_predicted": spread(seconds / plan["predicted_s"][way]),
                "times_planned": interval(seconds, planned),
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
            _where(row),
            row["way"] + (f" ({row['messages']})" if row["messages"] else ""),
            f"{1e3 * row['predicted_s']:.1f}",
            told(row["measured_s"], 1e3),
            told(row["over_predicted"]),
            told(row["times_planned"]),
        ]
        for row in rows
    ]
    heads = [
        "setting",
        "messages",
        "predicted, ms",
        "measured, ms",
        "measured / predicted",
        "times planned",
    ]
    return markdown_table(heads, cells)


INTRODUCTION = """\
# Planned messages on shaped hosts

`scripts/bench-network --plans` makes this page: LDTE-BS over Horovod's own optimizer, its tensors
in one message each ("none"; Horovod fuses what is ready at the same time), in one message together
("all"), small neighbours together ("default"), and as `groups="planned"` has measured and decided
in the first steps of the same run. It is one compressor, regrouped before every step. All four are
predicted by the plan from what was measured then, before any of these steps was timed; what is
timed is from a step's first gradient to its last result, on the slowest rank. Every round has one
step of each way, in an order of its own. "measured" has the median over rounds with the least and
the most; "times planned" is the quotient of two medians, with the interval in which it lies in 95
of 100 cases (bootstrapped over the rounds). The hosts are network namespaces of one machine and
share its cores, which real hosts do not.
"""


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """OUTPUT.json and OUTPUT.md."""
    made = page.write_rows(rows, options)
    parts = [
        INTRODUCTION,
        made,
        _in_words(rows) + "\n",
        table(rows),
    ]
    options.output.with_suffix(".md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _in_words(rows: list[dict[str, Any]]) -> str:
    """Return in words how near the predictions are, and how often the plan was the quickest."""
    off = np.array([abs(row["over_predicted"]["median"] - 1) for row in rows])
    others = [row for row in rows if row["way"] != "planned"]
    slower, quicker = (
        [row for row in others if is_so(row["times_planned"])]
        for is_so in (lambda times: times["low"] > 1, lambda times: times["high"] < 1)
    )
    named = ", ".join(
        f"{_where(row)}, {row['way']} ({row['times_planned']['median']:.2f})" for row in quicker
    )
    return (
        f"Of {len(rows)} predictions {int((off <= 0.2).sum())} are within 20 % of what was "
        "measured; half of them are within "
        f"{100 * float(np.median(off)):.0f} %. Of {len(others)} comparisons with the plan, the "
        "other way was slower in "
        f"{len(slower)} and quicker in {len(quicker)}, beyond the "
        f"interval{': ' if named else ''}{named}; else they are as quick."
    )


def _where(row: dict[str, Any]) -> str:
    return (
        f"{row['rate']}, {row['hosts']} hosts, {row['model']}, {row['compute']}, "
        f"density {spell_density(row['density'])}"
    )
