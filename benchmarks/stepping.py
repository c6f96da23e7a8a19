"""Step overhead, beside one pass over memory: ``python -m benchmarks step``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks._page import made_with, markdown_table, write
from benchmarks._ranks import horovod_version, launch
from benchmarks.step.goals import BESIDE, PAIRS_US, RANKS, Row, verdicts, verdicts_beside
from benchmarks.step.meter import PARTS
from benchmarks.step.models import TITLES, needed_bytes
from benchmarks.step.summary import Summary, merged, summarize
from examples.spelling import density_argument

LIMIT_S = 2400
"""Time limit of a launch."""


MODELS = ("overhead", "transformer", "resnet50", "lstm", "vgg16", *BESIDE)
METHODS = ("dense", "fp16", *PAIRS_US, "topk", "dgc", "gaussian_k")
DEFAULTS = {"models": list(MODELS), "methods": list(METHODS), "ranks": [1, 2, 4], "seconds": 1.5}
QUICK = {"models": ["overhead"], "methods": ["dense", "ldte_bs"], "ranks": [2], "seconds": 0.1}
"""Defaults of the options with ``--quick``; ``DEFAULTS`` are those without."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        help="models whose sizes the gradients have; overhead: many small tensors; "
        f"{', '.join(BESIDE)}: comparisons with {RANKS} ranks and methods of their own, which take "
        "turns in one launch (default: all)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help=f"methods, with options as in ldte_bs,codec=block16 (default: {' '.join(METHODS)})",
    )
    ranks = "numbers of ranks (default: 1 2 4)"
    parser.add_argument("--ranks", nargs="+", type=int, help=ranks)
    parser.add_argument(
        "--density",
        type=density_argument,
        default=0.001,
        help="a number, a mapping by tensor name, or hiding (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="seconds for which each method is measured with each model, in 3 to 60 rounds "
        "(default: 1.5)",
    )


def run(options: argparse.Namespace) -> int:
    for name, value in (QUICK if options.quick else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    before, bench = f"{os.getloadavg()[0]:.1f}", Bench(options)
    with _bars() as progress:
        launches = [(method, ranks) for ranks in options.ranks for method in options.methods]
        bar = progress.add_task("launches", total=len(launches))
        for method, ranks in launches:
            progress.update(bar, description=f"{method}, {ranks} ranks")
            for summary in bench.launch(method, ranks):
                progress.console.print(_line(summary), style="dim")
            progress.advance(bar)
        for name in [each for each in BESIDE if each in options.models]:
            progress.update(bar, description=name)
            bench.compare(name)
    machine = {**made_with(), "horovod": horovod_version(), "load average before": before}
    print(write_page(bench, machine))
    return 0


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.summaries: list[Summary] = []
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []
        self.verdicts: list[Row] = []

    def launch(self, method: str, ranks: int) -> Iterator[Summary]:
        """Measure one method with all models for which the memory suffices; yield the summaries."""
        models = list(self._fitting(method, ranks))
        if not models:
            return
        options = self.options
        settings = {
            "method": method,
            "density": str(options.density),
            "seconds": options.seconds,
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        found = launch(
            "benchmarks.step.worker", ranks, *arguments, "--models", *models, limit_s=LIMIT_S
        )
        for by_rank in zip(*found):
            rows = merged([each["rows"] for each in by_rank])
            summary = summarize(method, ranks, by_rank, rows)
            named = {"model": summary.model, "method": method, "ranks": ranks}
            self.rows += [{**named, **row} for row in rows]
            self.summaries.append(summary)
            yield summary

    def compare(self, name: str) -> None:
        """Measure several ways to do the same work in one launch."""
        arguments = (name, str(self.options.seconds))
        rows = merged(launch("benchmarks.step.beside", RANKS, *arguments, limit_s=LIMIT_S))
        self.beside += [{"model": name, **row} for row in rows]
        self.verdicts += verdicts_beside(name, rows)

    def _fitting(self, method: str, ranks: int) -> Iterator[str]:
        for model in [each for each in self.options.models if each not in BESIDE]:
            needed, there = needed_bytes(model, method, ranks), available_bytes()
            if needed <= there:
                yield model
                continue
            why = f"it needs {needed / 1e9:.1f} GB, of which {there / 1e9:.1f} GB were free"
            self.left_out.append({"model": model, "method": method, "ranks": ranks, "why": why})


def available_bytes() -> int:
    told = Path("/proc/meminfo").read_text(encoding="ascii")
    return 1024 * int(re.findall(r"^MemAvailable:\s*(\d+) kB", told, re.MULTILINE)[0])


HEADER = ["method", "ms", "times the floor", *PARTS, "process", "wall", "page faults", "one pass"]


def write_page(bench: Bench, machine: dict[str, str]) -> str:
    options, found = bench.options, bench.summaries
    asked = options.density
    density = asked if isinstance(asked, float) else str(asked)
    goals = [*verdicts(found, density), *bench.verdicts]
    head = {"made_with": machine, "command": _command(options), "quick": options.quick}
    head |= {"density": density, "seconds": options.seconds}
    lists = {
        "goals": goals,
        "summaries": [asdict(summary) for summary in found],
        "left_out": bench.left_out,
        "rows": bench.rows,
        "beside": bench.beside,
    }
    header = ["on 2 ranks", "measured", "goal", ""]
    shown = {
        "goals": markdown_table(header, goals) if goals else "",
        "sections": [_section(members) for members in _by_model(found)],
        "left_out": [
            {**each, "title": _title(each["model"], each["ranks"])} for each in bench.left_out
        ],
        "density_text": str(density),
    }
    return write(options.output / "step", "step.md", head, lists, **shown)


def _by_model(summaries: Sequence[Summary]) -> list[list[Summary]]:
    models = list(TITLES)

    def place(summary: Summary) -> tuple[int, int]:
        return models.index(summary.model), summary.ranks

    return [list(members) for _, members in groupby(sorted(summaries, key=place), key=place)]


def _title(model: str, ranks: int) -> str:
    return f"{TITLES[model]}, {ranks} rank{'s' if ranks > 1 else ''}"


def _section(members: list[Summary]) -> dict[str, Any]:
    first = members[0]
    return {
        "title": _title(first.model, first.ranks),
        "floor": f"{first.floor_ms} ms in the launch of `{first.method}`",
        "table": markdown_table(HEADER, map(_cells, members)),
        "members": members,
    }


def _cells(summary: Summary) -> list[str]:
    parts = [f"{summary.parts[part].median:.2f}" if summary.parts else "" for part in PARTS]
    return [
        f"`{summary.method}`",
        f"{summary.work_ms.median:.2f}",
        str(summary.work),
        *parts,
        f"{summary.process.median:.1f}",
        f"{summary.wall.median:.1f}",
        f"{summary.faults.median:,.0f} ({summary.fault_share:.1%})",
        "" if summary.one_pass is None else f"{summary.one_pass:.0%}",
    ]


def _command(options: argparse.Namespace) -> str:
    lists = {name: getattr(options, name) for name in ("models", "methods", "ranks")}
    parts = ["python -m benchmarks step", *(["--quick"] if options.quick else [])]
    parts += [f"--{name} {' '.join(map(str, values))}" for name, values in lists.items()]
    density = shlex.quote(str(options.density))
    return " ".join([*parts, f"--density {density} --seconds {options.seconds:g}"])


def _bars() -> Progress:
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*bars, console=Console(stderr=True), transient=True)


def _line(summary: Summary) -> str:
    return (
        f"{summary.model}, {summary.method}, {summary.ranks} ranks: "
        f"{summary.work_ms.median:.2f} ms, {summary.work.median:.2f} times the floor, "
        f"{summary.rounds} rounds"
    )
