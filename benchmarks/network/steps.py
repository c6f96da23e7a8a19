"""Measures steps over networks of limited bandwidth, and writes a page for each frontend."""

from __future__ import annotations

import argparse
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks._page import Goal, command, made_with, markdown_table, write
from benchmarks.network import probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.launching import run_apart
from benchmarks.network.spans import PHASES
from benchmarks.network.summary import summarize

COLOURS = {
    "backward": "#bbbbbb",
    "select": "#4477aa",
    "encode": "#66ccee",
    "send": "#ee6677",
    "decode": "#ccbb44",
    "other": "#228833",
}
COMPUTE = {
    "none": "no compute",
    "asleep": "replayed backward, asleep",
    "busy": "backward, core busy",
}
WHICH = ("rate", "model", "compute", "hosts", "controller")
"""Keys that identify a setting."""
GOALS = (
    *(("100mbit", "none", "dense", 150), ("1gbit", "none", "dense", 50)),
    *(("1gbit", "none", "fp16", 25), ("1gbit", "none", "dgc", 2)),
    *(("1gbit", "asleep", "dense", 15), ("1gbit", "asleep", "topk", 3.7)),
    *(("1gbit", "asleep", "dgc", 1.6), ("10gbit", "none", "dense", 1.5)),
    *(("10gbit", "none", "fp16", 1), ("none", "none", "dense", 0.95)),
    ("none", "none", "fp16", 0.95),
)
"""Rate, compute, method, and the smallest ratio of its step time to ours, for ResNet-50 on 4 hosts.
Without a limited rate, our method should send dense gradients if sparse ones would be slower."""


def run(options: argparse.Namespace) -> None:
    cluster = Cluster(options.hosts)
    cluster.lay()
    settings = _kept(options.output) if options.append else []
    for rate in options.rates:
        cluster.shape(rate)
        wire = probe.describe(probe.measure(cluster, rate))
        for model, compute in product(options.models, options.compute):
            print(f"{rate}, {model}, compute {compute}: {wire}", flush=True)
            where = {"rate": rate, "model": model, "compute": compute, "hosts": options.hosts}
            where |= {"controller": options.controller, "wire": wire, "load": os.getloadavg()[1]}
            where |= {"command": command("scripts/bench-network"), "rounds": options.rounds}
            setting = {**where, **run_apart(cluster, options, model, compute)}
            setting["summary"] = summarize(setting)
            by_place = {_place(each): each for each in (*settings, setting)}
            settings = list(by_place.values())
            write_page(settings, options)
            print(table(setting), flush=True)


def _kept(output: Path) -> list[dict[str, Any]]:
    path = output.with_suffix(".json")
    return list(json.loads(path.read_text(encoding="utf-8"))["settings"]) if path.exists() else []


def _place(setting: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(setting[name] for name in WHICH)


def write_page(settings: list[dict[str, Any]], options: argparse.Namespace) -> None:
    density = options.density
    head = {
        "made_with": made_with(),
        "frontend": options.frontend,
        "density": density if isinstance(density, float) else str(density),
        "backward_ms": options.backward_ms,
    }
    sections = [{**each, "title": title(each), "table": table(each)} for each in settings]
    commands = dict.fromkeys(each["command"] for each in settings)
    shown = {"commands": list(commands), "sections": sections, "goals": goals_table(settings)}
    write(options.output, "network.md", head, {"settings": settings}, **shown)
    draw(settings, options.output.with_suffix(".png"))


def title(setting: dict[str, Any]) -> str:
    rate = "unshaped" if setting["rate"] == "none" else setting["rate"]
    how = "" if setting["controller"] == "gloo" else f", {setting['controller']}"
    return (
        f"{setting['hosts']} hosts, {rate}, {setting['model']}, {COMPUTE[setting['compute']]}{how}"
    )


def table(setting: dict[str, Any]) -> str:
    """Return a table with a row for each method; minimum and maximum over rounds are in
    brackets."""
    summary = setting["summary"]
    phases = (*PHASES, "other") if "phases_ms" in next(iter(summary.values())) else ()
    header = ["method", "step, ms", "times ours", "dense over it", *phases]
    rows = []
    for method, figures in summary.items():
        cells = [f"`{method}`", _spread(figures["step_ms"], 1), _spread(figures["times_ours"], 2)]
        cells.append(_spread(figures["over_first"], 2))
        cells += [f"{figures['phases_ms'][name]:,.1f}" for name in phases]
        cells += [f"{figures['received_bytes'] / 1e6:,.2f}", f"{figures['worked_ms']:,.0f}"]
        rows.append(cells)
    return markdown_table([*header, "received, MB", "all threads, ms"], rows)


def _spread(values: dict[str, float], digits: int) -> str:
    median, low, high = (f"{values[name]:,.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def goals_table(settings: list[dict[str, Any]]) -> str:
    found = {
        (each["rate"], each["compute"], each["controller"]): each["summary"]
        for each in settings
        if (each["model"], each["hosts"]) == ("resnet50", 4)
    }
    rows = []
    for rate, compute, method, times in GOALS:
        goal = Goal(times, is_most=False)
        for (*where, controller), summary in found.items():
            if where == [rate, compute] and method in summary:
                ratio = summary[method]["times_ours"]
                cells = [f"{rate}, {compute}, {controller}, over {method}", str(goal)]
                rows.append([*cells, _spread(ratio, 2), goal.verdict(ratio["median"])])
    header = ["ResNet-50 on 4 hosts: wire, compute, over", "goal", "measured", ""]
    return markdown_table(header, rows) if rows else ""


def draw(settings: list[dict[str, Any]], path: Path) -> None:
    """Draw the phases of a step, or whole steps without phases, with a panel for each setting."""
    figure = Figure(figsize=(9, 0.6 + 2.2 * len(settings)), layout="constrained")
    panels = figure.subplots(len(settings), 1, squeeze=False)[:, 0]
    for panel, setting in zip(panels, settings):
        summary = setting["summary"]
        names, left = list(summary)[::-1], [0.0] * len(summary)
        for phase, colour in COLOURS.items():
            widths = [_phase(summary[name], phase) for name in names]
            panel.barh(names, widths, left=left, color=colour, label=phase)
            left = [a + b for a, b in zip(left, widths)]
        panel.set_xlabel("ms of a step")
        panel.set_title(title(setting), fontsize=10)
    panels[0].legend(ncols=6, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def _phase(figures: dict[str, Any], phase: str) -> float:
    whole = {"other": figures["step_ms"]["median"]}
    return float(figures.get("phases_ms", whole).get(phase, 0.0))
