"""The result: JSON, a page of tables, and stacked bars of where the steps' time goes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import hvd_sparse
from benchmarks._streams import json_by_line, markdown_table
from benchmarks.network import goals
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
    "busy": "replayed backward, core busy",
    "real": "real forward and backward",
}


INTRODUCTION = """\
# Over a real wire

Training steps of several methods, side by side: gradients in, averaged gradients out, and where
said a backward pass before it, replayed from recorded timings. The hosts are network namespaces of
one machine with a token-bucket shaper at both ends of every link; they share the machine's cores,
which real hosts do not. Every method runs in every round in a launch of its own, each round in
another order (where a title says "in one launch", an older measurement, all methods took turns in
the same processes); a figure is the median over rounds, with the least and the most in brackets.
"times ours" is a ratio taken within each round. The phases are means over steps and ranks, by the
clock; in brackets, what the processor worked for the training thread, which other programs on the
machine do not change. "send" is what a rank waits for the exchange, other ranks included; what ours
waits asleep for them, before it hands over the last gradient, counts as "select". Dense and fp16
are Horovod's own; topk and dgc send int64/float32 pairs, one allgather for values and one for
indices, of every tensor.
"""


WHICH = ("rate", "model", "compute", "hosts", "controller")
"""What tells settings apart."""


OF_A_RUN = ("command", "hosts", "controller", "rounds", "steps_a_round")
"""What the settings of one page can differ in: their commands say it."""


def command() -> str:
    """Return the command as it was typed."""
    return "scripts/bench-network " + shlex.join(sys.argv[1:])


def begun(options: argparse.Namespace) -> dict[str, Any]:
    """A document without settings, or with those that are to be kept."""
    return {"made_with": environment(options), "settings": kept(options, "settings")}


def kept(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Return the settings of the existing page, with --append."""
    path = options.output.with_suffix(".json")
    return (
        list(json.loads(path.read_text(encoding="utf-8"))[name])
        if options.append and path.exists()
        else []
    )


def joined(
    old: list[dict[str, Any]], found: list[dict[str, Any]], which: Sequence[str]
) -> list[dict[str, Any]]:
    """Both, what was measured anew in the place of what was; ``which`` keys tell them apart."""
    return list({tuple(each[name] for name in which): each for each in (*old, *found)}.values())


def commands(measured: Iterable[dict[str, Any]]) -> str:
    """Return the commands that have made a page, a line each."""
    return "\n".join(
        f"    {command}" for command in dict.fromkeys(each["command"] for each in measured)
    )


def add(document: dict[str, Any], setting: dict[str, Any]) -> None:
    """Add a setting, in the place of an earlier measurement of it."""
    document["settings"] = joined(document["settings"], [setting], WHICH)


def write_rows(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Write OUTPUT.json of rows that were measured by several commands; return by what they were
    made, for the page beside it."""
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    given = {*OF_A_RUN, "density"}
    made_with = {name: value for name, value in environment(options).items() if name not in given}
    text = json_by_line({"made_with": made_with}, {"rows": rows})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    made = ", ".join(f"{name} {value}" for name, value in made_with.items())
    return f"Made by\n\n{commands(rows)}\n\nwith {made}.\n"


def environment(options: argparse.Namespace) -> dict[str, Any]:
    packages = ("numpy", "torch", "horovod", "numba")
    return {
        "command": command(),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "hvd_sparse": hvd_sparse.__version__,
        **{package: _version(package) for package in packages},
        "hosts": options.hosts,
        "controller": options.controller,
        "density": options.density,
        "backward_ms": options.backward_ms,
        "rounds": options.rounds,
        "steps_a_round": options.steps,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


def describe_wire(wire: dict[str, Any]) -> str:
    alone, ring = wire["alone_mbit_s"], wire["ring_mbit_s"]
    return (
        f"one host to another {alone['long']:,.0f} Mbit/s ({alone['medium']:,.0f} for 1 MB, "
        f"{alone['small']:,.0f} for "
        f"100 kB, the reply included); all at once, each to the next: {min(ring):,.0f} to "
        f"{max(ring):,.0f} Mbit/s"
    )


def table(setting: dict[str, Any]) -> str:
    """One line a method; times in ms, in brackets the spread, or what of it the processor worked
    for this thread."""
    header = ["method", "step, ms", "times ours", *PHASES, "other", "received, MB"]
    rows = []
    for method, numbers in summarize(setting).items():
        step, times, phases = numbers["step_ms"], numbers["times_ours"], numbers["phases_ms"]
        used = {
            name: f" ({numbers['processor_ms'][name]:,.1f})"
            for name in ("select", "encode", "decode")
        }
        rows.append(
            [
                method,
                f"{step['median']:,.1f} ({step['low']:,.1f} to {step['high']:,.1f})",
                f"{times['median']:.2f} ({times['low']:.2f} to {times['high']:.2f})",
                *(f"{phases[name]:,.1f}{used.get(name, '')}" for name in (*PHASES, "other")),
                f"{numbers['received_bytes'] / 1e6:,.2f}",
            ]
        )
    return markdown_table(header, rows)


def title(setting: dict[str, Any]) -> str:
    """Return a setting in words."""
    where = (
        f"{setting['hosts']} hosts, {'unshaped' if setting['rate'] == 'none' else setting['rate']}"
    )
    how = "" if setting["controller"] == "gloo" else f", {setting['controller']}"
    if not setting.get("is_apart"):
        how += ", methods in one launch"
    return f"{where}, {setting['model']}, {COMPUTE[setting['compute']]}{how}"


def render(document: dict[str, Any], picture: str) -> str:
    settings = document["settings"]
    made = ", ".join(
        f"{name} {value}" for name, value in document["made_with"].items() if name not in OF_A_RUN
    )
    parts = [INTRODUCTION, f"Made by\n\n{commands(settings)}\n\nwith {made}.\n"]
    parts += ["## Goals\n", goals.table(settings) + "\n"]
    parts += ["What the cores alone cost:\n", goals.why(settings, os.cpu_count() or 1) + "\n"]
    parts += ["## Measured\n", f"![where the time goes]({picture})\n"]
    for setting in settings:
        parts.append(f"### {title(setting)}\n")
        parts.append(
            f"Probe: {describe_wire(setting['wire'])}. Load of the machine: "
            f"{setting['load']:.1f}.\n"
        )
        parts.append(table(setting) + "\n")
        parts += [f"{name}: {words}.\n" for name, words in verdicts(setting)]
    return "\n".join(parts)


def verdicts(setting: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the choices of the methods that choose by themselves."""
    reports = setting.get("reports", {})
    return [(name, report["verdict"]) for name, report in reports.items() if "verdict" in report]


def draw(document: dict[str, Any], path: Any) -> None:
    settings = document["settings"]
    figure, axes = plt.subplots(
        len(settings), 1, figsize=(9, 0.6 + 2.2 * len(settings)), squeeze=False
    )
    for axis, setting in zip(axes[:, 0], settings):
        summary = summarize(setting)
        names = list(summary)[::-1]
        left = [0.0] * len(names)
        for phase in (*PHASES, "other"):
            widths = [summary[name]["phases_ms"][phase] for name in names]
            axis.barh(names, widths, left=left, color=COLOURS[phase], label=phase)
            left = [a + b for a, b in zip(left, widths)]
        axis.set_xlabel("ms of a step, mean over steps and ranks")
        axis.set_title(title(setting), fontsize=10)
    axes[0, 0].legend(ncols=6, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(document: dict[str, Any], output: Path) -> None:
    """OUTPUT.json, with every step's numbers, OUTPUT.md and OUTPUT.png."""
    output.parent.mkdir(parents=True, exist_ok=True)
    for setting in document["settings"]:
        setting["summary"] = summarize(setting)
    text = json_by_line({"made_with": document["made_with"]}, {"settings": document["settings"]})
    output.with_suffix(".json").write_text(text, encoding="utf-8")
    picture = output.with_suffix(".png")
    output.with_suffix(".md").write_text(render(document, picture.name), encoding="utf-8")
    draw(document, picture)
