"""The page and the JSON of ``bench step``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks._interleaved_timing import Quartiles
from benchmarks._streams import json_by_line, markdown_table
from benchmarks.step.goals import Verdict, verdicts
from benchmarks.step.meter import PARTS
from benchmarks.step.models import TITLES
from benchmarks.step.summary import Summary
from hvd_sparse.density_text import spell_density

HEADER = [
    "method",
    "ms",
    "times the floor",
    *(part if part != "python" else "Python" for part in PARTS),
    "process",
    "wall",
    "page faults",
    "one pass",
]

PAGE = """\
# What a step works

Real steps under Horovod's optimizer for PyTorch, on one machine: gradients in, averaged gradients
out, at density {density} and the default options, rollback included. Made by

    {command}

with {made_with}.{quick}

The floor is `residual.add_(gradient)` of the same tensors in torch, one pass over memory. In every
round of a launch a step, a step that is traced and the floor follow each other in changing order,
each step on gradients drawn anew; a figure is a quotient of one round, the median over the rounds
with the quartiles in brackets. Every method has a launch of its own. Of the ranks it is the mean.

- *times the floor*: processor time that the training thread works in `compress` and `decompress`,
  over that of the floor; *ms* is the same without the quotient. What Horovod does in its own
  thread, and its wait for the carriers' sum, are not in it.
- *select* (with accumulating), *encode*, *decode* (with adding up) are the spans of
  `hvd_sparse.tracing`, by the thread's clock; *exchange* is what calls of Horovod's operations
  inside `compress` and `decompress` work, polling included; *Python* is the rest. All are times
  the floor, and of the traced steps, in which every tensor is taken in and decoded in its own turn.
- *process*: processor time of all threads, with Horovod's and with a backward pass that only hands
  gradients over, times the floor. *wall*: from the first gradient to the last result on the slowest
  rank, over the floor's time; more ranks than cores wait for each other.
- *page faults* of a step, and in brackets beside the pages that the gradients fill; the floor has
  none.
- *one pass*: share of the selections that read the tensor once, in the rounds.

Gradients are Laplace distributed with a scale that differs between stretches; the first one is what
error feedback leaves after many steps. What asking for a thread's time takes is taken off. A load
average above the number of cores says that others were at work: such figures are rough.

{goals}

{sections}
"""


def document_of(
    summaries: Sequence[Summary],
    rows: Sequence[dict[str, Any]],
    left_out: Sequence[dict[str, Any]],
    head: dict[str, Any],
) -> str:
    """Return the JSON: what it was made with, all figures, the verdicts, and the rounds' rows."""
    told = verdicts(summaries, head["density"])
    lists = {
        "goals": [verdict.describe() for verdict in told],
        "summaries": [summary.describe() for summary in summaries],
        "left_out": list(left_out),
        "rows": list(rows),
    }
    return json_by_line(head, lists)


def render(
    summaries: Sequence[Summary], left_out: Sequence[dict[str, Any]], head: dict[str, Any]
) -> str:
    """Return the page."""
    quick = " **A quick run: no figure here means anything.**" if head["quick"] else ""
    parts = [_section(list(members)) for members in _by_model(summaries)]
    parts += [f"Left out: {each['method']}, {_title(each)}: {each['why']}." for each in left_out]
    return PAGE.format(
        density=spell_density(head["density"]),
        command=head["command"],
        made_with=", ".join(f"{name} {value}" for name, value in head["made_with"].items()),
        quick=quick,
        goals=goals_table(verdicts(summaries, head["density"])),
        sections="\n\n".join(parts),
    )


def goals_table(told: Sequence[Verdict]) -> str:
    """Return every goal, with what was measured."""
    if not told:
        return "No goal is about what was measured here."
    header = ["on 2 ranks", "measured", "goal", ""]
    return markdown_table(header, [verdict.cells() for verdict in told])


def write(folder: Path, document: str, page: str) -> None:
    """Write step.json and step.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step.json").write_text(document, encoding="utf-8")
    (folder / "step.md").write_text(page, encoding="utf-8")


def _by_model(summaries: Sequence[Summary]) -> list[list[Summary]]:
    models, ranks = list(TITLES), sorted({summary.ranks for summary in summaries})

    def place(summary: Summary) -> tuple[int, int]:
        return models.index(summary.model), ranks.index(summary.ranks)

    return [list(members) for _, members in groupby(sorted(summaries, key=place), key=place)]


def _title(setting: dict[str, Any]) -> str:
    ranks = setting["ranks"]
    return f"{TITLES[setting['model']]}, {ranks} rank{'s' if ranks > 1 else ''}"


def _section(members: list[Summary]) -> str:
    first = members[0]
    title = _title({"model": first.model, "ranks": first.ranks})
    rows = [_cells(summary) for summary in members]
    floor = f"The floor: {_number(first.floor_ms)} ms in the launch of `{first.method}`."
    pairs = [words for summary in members if (words := _pairs(summary))]
    return "\n\n".join([f"## {title}", floor, markdown_table(HEADER, rows), "\n".join(pairs)])


def _pairs(summary: Summary) -> str:
    """Return a line on what the pair of calls of one tensor takes, in words."""
    parts = []
    if summary.sparse_us is not None:
        parts.append(f"{_number(summary.sparse_us)} us for one of more than one dimension")
    if summary.dense_us is not None:
        parts.append(f"{_number(summary.dense_us)} us for any other")
    return f"- `{summary.method}`, the pair of calls for a tensor: " + ", ".join(parts)


def _cells(summary: Summary) -> list[str]:
    parts = [f"{summary.parts[part].median:.2f}" if summary.parts else "" for part in PARTS]
    return [
        f"`{summary.method}`",
        f"{summary.work_ms.median:.2f}",
        _number(summary.work),
        *parts,
        f"{summary.process.median:.1f}",
        f"{summary.wall.median:.1f}",
        f"{summary.faults.median:,.0f} ({summary.fault_share:.1%})",
        "" if summary.one_pass is None else f"{summary.one_pass:.0%}",
    ]


def _number(quartiles: Quartiles) -> str:
    return f"{quartiles.median:.2f} ({quartiles.low:.2f} to {quartiles.high:.2f})"
