"""Steps in TensorFlow on shaped hosts: whole ones, beside the better of dense and fp16."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from benchmarks._streams import json_by_line, markdown_table
from benchmarks.network import page, probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.stolen_time import StolenTime
from benchmarks.network.summary import by_round, interval, spread

DENSE = ("dense", "fp16")
COMPUTE = {"none": "nothing computed", "busy": "products of matrices before the first gradient"}
Run = Callable[[Cluster, argparse.Namespace, str, str], dict[str, Any]]

INTRODUCTION = """\
# In TensorFlow, over a real wire

`scripts/bench-network --frontend tensorflow` makes this page: whole steps of a `tf.function` with
Horovod's `DistributedGradientTape`, from gradients that are given to averaged ones on the slowest
rank; "busy" computes before them, for as long as `--backward-ms` says on a core of its own. Every
method runs in every round, each round in another order; "step" is the median over rounds, with the
least and the most; "times the better" is the quotient of the medians over the rounds of the method
and of the better of dense and fp16, with the interval in which it lies in 95 of 100 cases
(bootstrapped over the rounds). `auto` has made its choice before the first round. The hosts are
network namespaces of one machine and share its cores, which real hosts do not.
"""


def run(options: argparse.Namespace, run_setting: Run) -> None:
    """Measure every setting, and write each as it comes."""
    cluster = Cluster(options.hosts)
    cluster.lay()
    settings: list[dict[str, Any]] = []
    for rate in options.rates:
        shaped = None if rate == "none" else rate
        cluster.shape(shaped)
        wire = page.describe_wire(probe.measure(cluster, shaped))
        for model, compute in product(options.models, options.compute):
            neighbours = StolenTime()
            result = run_setting(cluster, options, model, compute)
            where = {"rate": rate, "hosts": options.hosts, "model": model, "compute": compute}
            where |= {"controller": options.controller}
            told = {"wire": wire, "load": os.getloadavg()[1], "stolen": neighbours.share()}
            settings.append({**where, **told, **result})
            write(settings, options)
            print(table(settings[-1]), flush=True)


def table(setting: dict[str, Any]) -> str:
    """One line a method."""
    rows = setting["rows"]
    seconds = {
        method: by_round(rows, method) for method in dict.fromkeys(row["method"] for row in rows)
    }
    better = min(
        (seconds[name] for name in DENSE if name in seconds),
        key=lambda each: float(np.median(each)),
    )
    cells = []
    for method, taken in seconds.items():
        step, times = spread(1e3 * taken), interval(taken, better)
        cells.append(
            [
                method,
                f"{step['median']:,.1f} ({step['low']:,.1f} to {step['high']:,.1f})",
                f"{times['median']:.3f} ({times['low']:.3f} to {times['high']:.3f})",
            ]
        )
    return markdown_table(["method", "step, ms", "times the better"], cells)


def write(settings: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """OUTPUT.json and OUTPUT.md."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    made_with = page.environment(options)
    text = json_by_line({"made_with": made_with}, {"settings": settings})
    options.output.with_suffix(".json").write_text(text, encoding="utf-8")
    options.output.with_suffix(".md").write_text(render(settings, made_with), encoding="utf-8")


def render(settings: list[dict[str, Any]], made_with: dict[str, Any]) -> str:
    """Markdown."""
    parts = [
        INTRODUCTION,
        f"Made with {', '.join(f'{name} {value}' for name, value in made_with.items())}.\n",
    ]
    for setting in settings:
        rate = "unshaped" if setting["rate"] == "none" else setting["rate"]
        where = (
            f"{setting['hosts']} hosts, {rate}, {setting['model']}, "
            f"{COMPUTE[setting['compute']]}, {setting['controller']}"
        )
        parts.append(f"## {where}\n")
        parts.append(
            f"Probe: {setting['wire']}. Load of the machine: {setting['load']:.1f}; other machines "
            "took "
            f"{setting['stolen']:.1%} of its cores' time.\n"
        )
        parts.append(table(setting) + "\n")
        parts += [f"{method}: {verdict}.\n" for method, verdict in setting["verdicts"].items()]
    return "\n".join(parts)
