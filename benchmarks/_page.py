"""Writes pages of results from a template and tables, and the figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined  # which torch brings

import hvd_sparse

TEMPLATES = Path(__file__).with_name("templates")
PACKAGES = ("numpy", "torch", "tensorflow", "horovod", "numba")
QUICK = "**A quick run: no figure here means anything.**"


@dataclass(frozen=True)
class Quartiles:
    low: float
    median: float
    high: float

    @classmethod
    def of(cls, samples: np.ndarray) -> Quartiles:
        """Return the quartiles of the finite samples."""
        return cls(*np.percentile(samples[np.isfinite(samples)], [25, 50, 75]).tolist())

    def __str__(self) -> str:
        digits = 3 if self.median < 1 else 2 if self.median < 100 else 0
        low, median, high = (f"{x:,.{digits}f}" for x in (self.low, self.median, self.high))
        return f"{median} ({low} to {high})"


@dataclass(frozen=True)
class Goal:
    limit: float
    is_most: bool = True

    def is_met(self, figure: float) -> bool:
        return figure <= self.limit if self.is_most else figure >= self.limit

    def verdict(self, figure: float) -> str:
        """Return "met", or by which factor the goal is missed."""
        by = figure / self.limit if self.is_most else self.limit / figure
        return "met" if self.is_met(figure) else f"missed by {by:.2f} times"

    def __str__(self) -> str:
        return f"{'≤' if self.is_most else '≥'} {self.limit:g}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose first column is aligned to the left, and all others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(
        "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |"
        for row in [header, rule, *rows]
    )


def json_by_line(head: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> str:
    """Return JSON that has a line for every member of ``lists``."""
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    for name, members in lists.items():
        lines = ",\n".join(json.dumps(member) for member in members)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{" + ",\n".join(parts) + "}\n"


def command(program: str) -> str:
    """Return the command line as typed, with ``program`` in place of Python and the module."""
    return shlex.join([*program.split(), *sys.argv[1:]])


def made_with() -> dict[str, str]:
    """Return a description of the machine, and the versions of the packages."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "cores": f"{os.cpu_count()} of {model[1] if model else platform.processor()}",
        "load average": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "hvd_sparse": hvd_sparse.__version__,
        **{package: version for package in PACKAGES if (version := _version(package))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def write(
    output: Path,
    template: str,
    head: Mapping[str, Any],
    lists: Mapping[str, Sequence[Any]],
    **shown: Any,
) -> str:
    """Write ``head`` and ``lists`` to OUTPUT.json and the page to OUTPUT.md; return the page."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True
    )
    made = ", ".join(f"{name} {value}" for name, value in head.get("made_with", {}).items())
    quick = QUICK if head.get("quick") else ""
    page = templates.get_template(template).render(
        {**head, "made_with": made, "quick": quick, "picture": f"{output.name}.png", **shown}
    )
    page = re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json_by_line(head, lists), encoding="utf-8")
    output.with_suffix(".md").write_text(page, encoding="utf-8")
    return page
