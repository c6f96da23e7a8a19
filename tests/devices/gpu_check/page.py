"""The page of ``scripts/gpu-check``: verdicts, times and a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from benchmarks._page import made_with, markdown_table
from benchmarks._page import write as write_page

Lines = list[dict[str, float]]
"""Times in milliseconds by name, with a row for each size and density."""
PLACE = ("entries", "density")


class Result(NamedTuple):
    """Result of one check."""

    name: str
    verdict: str
    words: str


def draw(times: dict[str, Lines], path: Path) -> Path | None:
    if not times or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure  # a part of the extra plot

    figure = Figure(figsize=(5.5 * len(times), 5), layout="constrained")
    panels = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
    for panel, (engine, lines) in zip(panels, times.items()):
        largest = max(each["entries"] for each in lines)
        rows = [each for each in lines if each["entries"] == largest]
        densities = [each["density"] for each in rows]
        for name in rows[0]:
            if name not in PLACE:
                panel.plot(densities, [each[name] for each in rows], marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel=f"density, {largest:,.0f} entries")
        panel.set_title(f"engine {engine}")
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path


def write(path: Path, name: str, results: list[Result], times: dict[str, Lines]) -> None:
    verdicts = [[each.name, each.verdict, _told(each)] for each in results]
    tables = {
        engine: markdown_table(list(lines[0]), [_cells(each) for each in lines])
        for engine, lines in times.items()
    }
    rows = [{"engine": engine, **each} for engine, lines in times.items() for each in lines]
    verdict_table = markdown_table(["check", "verdict", ""], verdicts)
    shown = {"verdicts": verdict_table, "tables": tables, "name": name}
    write_page(path.with_suffix(""), "gpu.md", {"made_with": made_with()}, {"times": rows}, **shown)


def _cells(times: dict[str, float]) -> list[str]:
    places = {"entries": f"{times['entries']:,.0f}", "density": f"{times['density']:g}"}
    return [places.get(name) or f"{value:.3f}" for name, value in times.items()]


def _told(result: Result) -> str:
    """Return a result's text if it is one line; otherwise the last line of a failure."""
    lines = [line for line in result.words.splitlines() if line.strip()] or [""]
    is_short = len(lines) == 1 or result.verdict == "FAILED"
    return lines[-1][:200].replace("|", "/") if is_short and not lines[-1].startswith("[{") else ""
