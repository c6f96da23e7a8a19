"""The page of a report: one file of HTML with its pictures inside, for light and dark screens."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hvd_sparse.cli.report._charts import (
    DASHES,
    SERIES,
    Chart,
    Section,
    _in_bytes,
    _in_time,
    style_of,
)
from hvd_sparse.cli.report._runs import Run
from hvd_sparse.version import __version__

INK, GRID = "#101112", "#d0d1d2"
"""Colours that stand for the page's own, which are others on a dark screen."""
UNKNOWN = "-"
WIDTH_IN, HEIGHT_IN, ROW_IN = 4.9, 2.9, 0.19
BRIGHTER = ("#6cb2ff", "#ff9a5c", "#4fd0a3", "#e08ad9", "#e3c04a", "#8fd0ee", "#b5b5b5", "#ff8095")
"""The series on a dark screen."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --grid: #e3e6ea;
  --paper: #f6f7f9; --card: #ffffff; --edge: #dfe3e8; SERIES }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b1; --grid: #2e353e;
  --paper: #11151a; --card: #1a2027; --edge: #2b323b; BRIGHTER } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: "DejaVu Sans", Verdana, system-ui, sans-serif; font-size: 15px; }
main { max-width: 1220px; margin: 0 auto; padding: 20px clamp(12px, 3vw, 40px) 48px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.15rem; margin: 36px 0 2px; }
p { margin: 0 0 12px; color: var(--soft); max-width: 75ch; }
.legend { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 4px 22px;
  padding: 8px 0; margin: 0; background: var(--paper); border-bottom: 1px solid var(--edge); }
.legend span { display: inline-flex; align-items: center; gap: 7px; overflow-wrap: anywhere; }
.legend svg { flex: none; }
.table { overflow-x: auto; background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; margin: 16px 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; font-size: 0.85rem; }
tr + tr td { border-top: 1px solid var(--edge); }
th:first-child, td:first-child { text-align: left; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; padding: 10px 10px 6px; background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; max-width: 600px; }
figcaption { font-weight: 600; font-size: 0.92rem; margin: 0 4px 4px; }
figure svg { display: block; width: 100%; height: auto; }
footer { margin-top: 40px; color: var(--soft); font-size: 0.85rem; }
"""


def page_of(title: str, runs: Sequence[Run], sections: Sequence[Section]) -> str:
    """Return the HTML, which fetches nothing.

    Parameters
    ----------
    title : at the top
    runs : that are shown
    sections : as ``_charts.sections_of`` gives them
    """
    light = " ".join(f"--c{i}: {colour};" for i, colour in enumerate(SERIES))
    dark = " ".join(f"--c{i}: {colour};" for i, colour in enumerate(BRIGHTER))
    style = STYLE.replace("SERIES", light).replace("BRIGHTER", dark)
    number, body = 0, []
    for section in sections:
        figures = []
        for chart in section.charts:
            number += 1
            picture = _svg_of(chart, runs, number)
            caption = html.escape(chart.title)
            figures.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
        body.append(
            f"<section><h2>{html.escape(section.heading)}</h2><p>{html.escape(section.words)}</p>"
            f'<div class="charts">{"".join(figures)}</div></section>'
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body><main>"
        f"<h1>{html.escape(title)}</h1>{_legend(runs)}{_table(runs)}{''.join(body)}"
        f"<footer>Written by hvd-sparse report {__version__}.</footer></main></body></html>\n"
    )


def _legend(runs: Sequence[Run]) -> str:
    spans = []
    for number, run in enumerate(runs):
        dash = DASHES[number % len(DASHES)]
        dashes = "" if dash == "-" else " ".join(f"{2 * length:g}" for length in dash[1])
        line = (
            '<svg width="34" height="10" aria-hidden="true"><line x1="1" x2="33" y1="5" y2="5" '
            f'stroke="var(--c{number % len(SERIES)})" stroke-width="2.5" '
            f'stroke-dasharray="{dashes}"/></svg>'
        )
        spans.append(f"<span>{line}{html.escape(run.name)}</span>")
    return f'<div class="legend">{"".join(spans)}</div>'


def table_of(runs: Sequence[Run]) -> list[list[str]]:
    """Return the rows of the table, headings first."""
    names = list(dict.fromkeys(name for run in runs for name in run.metric_names()))
    rows = [["run", "method", "ranks", "steps", *(name.replace("_", " ") for name in names)]]
    rows[0] += ["density", "bytes a step", "times smaller", "a step"]
    sent = [_bytes_a_step(run) for run in runs]
    most = max((each for each in sent if each), default=0.0)
    for run, nbytes in zip(runs, sent):
        config = run.about.get("config", {})
        densities = run.total("density_achieved")[1]
        ends = [run.metric(name, "step")[1][-1:] for name in names]
        rows.append(
            [
                run.name,
                config.get("selector", {}).get("id", UNKNOWN),
                str(run.about.get("world_size", UNKNOWN)),
                f"{run.steps:,}",
                *(f"{end[0]:.4g}" if end else UNKNOWN for end in ends),
                f"{densities[-1]:.3g}" if densities else UNKNOWN,
                _in_bytes(nbytes) if nbytes else UNKNOWN,
                f"{most / nbytes:.3g}" if nbytes else UNKNOWN,
                UNKNOWN if run.step_s is None else _in_time(run.step_s),
            ]
        )
    return rows


def _bytes_a_step(run: Run) -> float | None:
    places, values = run.bytes_sent("step")
    return values[-1] / places[-1] if places and places[-1] else None


def _table(runs: Sequence[Run]) -> str:
    headings, *rows = [[html.escape(cell) for cell in row] for row in table_of(runs)]
    head = "".join(f"<th>{cell}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return (
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


# -- pictures -------------------------------------------------------------------------------------


def _settings(number: int) -> dict[str, object]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": f"report {number}",  # names inside a picture: no two on the page are equal
        "text.parse_math": False,
        "font.size": 9,
        "font.family": "DejaVu Sans",
        "axes.edgecolor": GRID,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }


def _height_in(chart: Chart) -> float:
    return HEIGHT_IN if chart.rows <= 12 else 0.6 + ROW_IN * chart.rows


def _draw(chart: Chart, runs: Sequence[Run], axes: matplotlib.axes.Axes) -> None:
    axes.grid(linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    chart.draw(axes, runs)


def _svg_of(chart: Chart, runs: Sequence[Run], number: int) -> str:
    with matplotlib.rc_context(_settings(number)):
        figure = Figure(figsize=(WIDTH_IN, _height_in(chart)), layout="constrained")
        _draw(chart, runs, figure.subplots())
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    for colour, name in ((INK, "ink"), (GRID, "grid")):
        svg = svg.replace(colour, f"var(--{name})")
    for place, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--c{place})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(chart.title)}" ', 1)


def write_png(path: Path, title: str, runs: Sequence[Run], sections: Sequence[Section]) -> None:
    """Write all charts as one picture, two a row.

    Parameters
    ----------
    path : of the picture
    title : above it
    runs : that are shown
    sections : as ``_charts.sections_of`` gives them
    """
    charts = [chart for section in sections for chart in section.charts]
    pairs = [charts[first : first + 2] for first in range(0, len(charts), 2)]
    heights = [max(map(_height_in, pair)) for pair in pairs]
    with matplotlib.rc_context(_settings(0)):
        figure = Figure(figsize=(2 * WIDTH_IN + 0.6, sum(heights) + 1.2), layout="constrained")
        grid = figure.subplots(len(pairs), 2, squeeze=False, height_ratios=heights)
        for row, pair in zip(grid, pairs):
            for axes, chart in zip(row, pair):
                _draw(chart, runs, axes)
                axes.set_title(chart.title, fontsize=10, loc="left")
            for axes in row[len(pair) :]:
                axes.set_axis_off()
        handles = [Line2D([], [], label=run.name, **style_of(i)) for i, run in enumerate(runs)]  # type: ignore[arg-type]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, fontweight="bold")
        figure.savefig(path, format="png", dpi=140, facecolor="white")
