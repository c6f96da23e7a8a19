"""Merging layers, on shaped hosts: what it brings beside none, and beside one message for all."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks._streams import markdown_table
from benchmarks.network import page
from benchmarks.network.merged_ways import MGS, WAYS
from benchmarks.network.summary import by_round, interval, phases, spread
from hvd_sparse.density_text import spell_density

SHOWN = ("wfbp", "all", "greedy", "default", "mgs")
"""The ways in the order of the table."""

INTRODUCTION = """\
# Merging layers on shaped hosts

`scripts/bench-network --merging` makes this page: a training step over Horovod's own optimizer,
with exact top-k and `codec="block16"`, whose layers are merged in five ways.

| way | messages | selection |
| --- | --- | --- |
| `wfbp` | one a tensor, as soon as its gradient is ready (Horovod fuses what is ready together) | from every tensor |
| `all` | one, when the backward pass is over | one, from all |
| `greedy` | by MGS-SGD's published rule, from the costs that the run has measured | one from every group |
| `default` | small neighbours together, ours without options | from every tensor |
| `mgs` | [`Compression.mgs`](../methods/mgs.md): planned in the run, exactly | one from every group |

All five take turns in one launch, each for some steps of every round, in an order of the round's
own; the first step behind a change counts for none. "step" is from the first gradient to the last
result on the slowest rank, the median over rounds with the least and the most. "times `mgs`" is the
quotient of two medians and the interval in which it lies in 95 of 100 cases (bootstrapped over the
rounds): above 1, `mgs` is quicker. "select" and "wait" are a rank's means, of clock time. The hosts
are network namespaces of one machine and share its cores, which real hosts do not.
"""  # noqa: E501


def rows_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row a way, by one setting's result."""
    counted = _settled(result["rows"])
    ours = by_round(counted, MGS, "exchange")
    rows = []
    for way in SHOWN:
        seconds = by_round(counted, way, "exchange")
        parts = phases(counted, way)
        received = [row["received"] for row in counted if row["method"] == way]
        rows.append(
            {
                "way": way,
                "messages": result["reports"][way]["messages"],
                "measured_s": spread(seconds),
                "times_mgs": interval(seconds, ours),
                "select_ms": parts["select"],
                "wait_ms": parts["send"],
                "received_bytes": sum(received) / len(received),
            }
        )
    return rows


def _settled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the first of every way's turn, where there are others."""
    turns: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        turns.setdefault((row["method"], row["round"]), []).append(row)
    return [row for turn in turns.values() for row in (turn[1:] or turn)]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line a way of every setting."""
    heads = ["way", "messages", "step, ms", "times `mgs`", "select, ms", "wait, ms", "received, kB"]
    cells = []
    for row in rows:
        step, times = row["measured_s"], row["times_mgs"]
        cells.append(
            [
                f"`{row['way']}`",
                str(row["messages"]),
                f"{1e3 * step['median']:.1f} ({1e3 * step['low']:.1f} to {1e3 * step['high']:.1f})",
                f"{times['median']:.2f} ({times['low']:.2f} to {times['high']:.2f})",
                f"{row['select_ms']:.1f}",
                f"{row['wait_ms']:.1f}",
                f"{row['received_bytes'] / 1e3:,.0f}",
            ]
        )
    return markdown_table(heads, cells)


def in_words(rows: list[dict[str, Any]]) -> str:
    """Return in words how often ``mgs`` was quicker than each other way, and how often slower."""
    told = []
    for way in WAYS[1:]:
        times = [row["times_mgs"] for row in rows if row["way"] == way]
        quicker, slower = (
            sum(each["low"] > 1 for each in times),
            sum(each["high"] < 1 for each in times),
        )
        told.append(f"than `{way}` in {quicker} and slower in {slower}")
    settings = sum(row["way"] == MGS for row in rows)
    return (
        f"Of {settings} settings, `mgs` is quicker beyond the interval {', '.join(told)}; "
        "elsewhere they are as quick."
    )


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write OUTPUT.json and OUTPUT.md."""
    made = page.write_rows(rows, options)
    parts = [INTRODUCTION, made, in_words(rows)]
    settings: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        settings.setdefault(_where(row), []).append(row)
    for where, found in settings.items():
        parts += [f"\n## {where}\n", table(found)]
    options.output.with_suffix(".md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _where(row: dict[str, Any]) -> str:
    return (
        f"{row['model']}, {row['hosts']} hosts, "
        f"{'unshaped' if row['rate'] == 'none' else row['rate']}, {row['compute']}, "
        f"density {spell_density(row['density'])}"
    )
