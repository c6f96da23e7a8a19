"""The page of trainings on shaped hosts: JSON, tables, and scores over time."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import json_by_line, markdown_table
from benchmarks.network import page

mpl.use("Agg")
from matplotlib import pyplot as plt

WHICH = ("rate", "controller", "workers", "task", "line", "density")
"""What tells runs apart."""
TITLES = {
    "digits": "scikit-learn's digits, a small network",
    "fashion_mnist": "Fashion-MNIST, a CNN of 478,766 parameters",
    "gpt": "characters of the King James Bible, a GPT of 116,576 parameters",
    "lstm": "characters of the King James Bible, an LSTM of 222,816 parameters",
}
NEARLY = {False: 0.5, True: 0.02}
"""How far from dense's end is nearly there: points of accuracy, or nats a character (2 % of
perplexity)."""
STYLES = {"dense": ("black", "-"), "fp16": ("grey", "--"), "topk": ("#ee6677", "-")}
STYLES |= {"dgc": ("#ccbb44", "-"), "ldte_bs": ("#4477aa", "-")}

INTRODUCTION = """\
# Time to accuracy, over a real wire

Whole trainings by Horovod, one rank a host, until they are as good as dense training is at its end.
The hosts are network namespaces of one machine with a token-bucket shaper at both ends of every
link; they share the machine's cores, which real hosts do not: so all methods compute more slowly
than on hosts of their own, and what a wire costs counts for less. Networks, data, optimizers and
learning rates are those of [the accuracy page](accuracy.md): rates searched alike for dense and
`ldte_bs`, whose rate the other sparse methods take where their own was not searched. One seed, one
run a line, one line after the other: small differences are noise. Sparse methods are the package's
own, with the optimizer handed over. Time is from the first step on, without what scoring takes.
*Dense's end* is the score of dense training's last step on the quarter of the test data that curves
are made of; *nearly* is half a point of accuracy or 2 % of perplexity away from it. A curve has a
point every twelfth of the training, so times are known that finely. *Times dense* is dense's time
until the same score over this one's.
"""


def write(runs: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write OUTPUT.json, OUTPUT.md and OUTPUT.png."""
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    made_with = page.environment(options)
    text = json_by_line({"made_with": made_with}, {"runs": list(runs)})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    picture = output.with_suffix(".png")
    output.with_suffix(".md").write_text(render(runs, made_with, picture.name), encoding="utf-8")
    draw(runs, picture)


def render(runs: Sequence[dict[str, Any]], made_with: dict[str, Any], picture: str) -> str:
    """Return the page's text."""
    left_out = (*page.OF_A_RUN, "density", "backward_ms")
    made = ", ".join(f"{name} {value}" for name, value in made_with.items() if name not in left_out)
    parts = [INTRODUCTION, f"Made by\n\n{page.commands(runs)}\n\nwith {made}.\n"]
    parts.append(f"![Scores over time]({picture})\n")
    for group in _by_setting(runs):
        parts.append(f"## {title(group[0])}\n")
        parts.append(
            f"{TITLES[group[0]['task']]}, {group[0]['optimizer']}. Probe: {group[0]['wire']}.\n"
        )
        parts.append(table(group) + "\n")
    return "\n".join(parts)


def title(run: dict[str, Any]) -> str:
    """Return a setting in words."""
    rate = "unshaped" if run["rate"] == "none" else run["rate"]
    return f"{run['workers']} hosts, {rate}, {run['task']}"


def _by_setting(runs: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the runs of every task and wire, in the order of the tasks."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((list(TASKS).index(run["task"]), run["rate"]), []).append(run)
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def reached_s(run: dict[str, Any], mark: float, *, is_text: bool) -> float | None:
    """Return the seconds until a score is reached; None if it is not."""
    for (_, score), seconds in zip(run["curve"], run["seconds_at"]):
        if (score <= mark) if is_text else (score >= mark):
            return float(seconds)
    return None


def table(group: Sequence[dict[str, Any]]) -> str:
    """Return a line a method."""
    is_text = TASKS[group[0]["task"]].is_text
    dense = next(run for run in group if run["method"] == "dense")
    end = dense["curve"][-1][1]
    near = end + NEARLY[True] if is_text else end - NEARLY[False]
    rows = []
    for run in group:
        cells = [label(run), f"{run['learning_rate']:g}", f"{run['bytes']:,}"]
        cells.append(f"{1e3 * run['seconds_at'][-1] / run['steps']:.1f}")
        cells += [f"{run['seconds_at'][-1]:.0f}", _score(run["score"], is_text=is_text)]
        for mark in (near, end):
            seconds = reached_s(run, mark, is_text=is_text)
            beside = reached_s(dense, mark, is_text=is_text)
            cells.append("never" if seconds is None else f"{seconds:.0f}")
            cells.append("" if seconds is None or beside is None else f"{beside / seconds:.2f}")
        rows.append(cells)
    header = ["run", "learning rate", "bytes a step", "step, ms", "all steps, s"]
    header += ["perplexity" if is_text else "accuracy", "nearly dense's end, s", "times dense"]
    return markdown_table([*header, "dense's end, s", "times dense"], rows)


def label(run: dict[str, Any]) -> str:
    """Return what a run is called."""
    return run["line"] if run["density"] is None else f"{run['line']}, {run['density']:g}"


def _score(score: float, *, is_text: bool) -> str:
    return f"{math.exp(score):.3f}" if is_text else f"{score:.2f} %"


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw scores over time, a panel a task and wire."""
    settings = _by_setting(runs)
    columns = min(2, len(settings))
    lines = -(-len(settings) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(5.4 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(settings) :]:
        axes.set_axis_off()
    for group, axes in zip(settings, grid.flat):
        _draw_one(axes, group)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_one(axes: plt.Axes, group: Sequence[dict[str, Any]]) -> None:
    is_text = TASKS[group[0]["task"]].is_text
    for run in group:
        colour, style = STYLES[run["method"]]
        shown = ":" if run["warmup"] else style
        scores = [score for _, score in run["curve"]]
        axes.plot(run["seconds_at"], scores, shown, color=colour, label=label(run), linewidth=1.4)
        axes.plot(run["seconds_at"][-1], scores[-1], "o", color=colour, markersize=3)
    ends = [run["curve"][-1][1] for run in group]
    axes.set_ylim(*((min(ends) - 0.03, max(ends) + 0.4) if is_text else (82, max(ends) + 0.5)))
    axes.set_ylabel("nats a character" if is_text else "test accuracy, %", fontsize=8)
    axes.set_xlabel("seconds of training", fontsize=8)
    axes.set_title(title(group[0]), fontsize=9)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
