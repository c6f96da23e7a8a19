"""Whole steps of a frontend on shaped hosts, on a page of its own."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks._streams import json_by_line
from benchmarks.network import page, probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.stolen_time import StolenTime

Run = Callable[[Cluster, argparse.Namespace, str, str], dict[str, Any]]


@dataclass(frozen=True)
class FrontendPage:
    """What a frontend's page says of its own."""

    introduction: str
    compute: dict[str, str]
    """What each ``--compute`` means here."""
    table: Callable[[dict[str, Any]], str]
    """Markdown of a setting's rows."""


def run(options: argparse.Namespace, run_setting: Run, of_frontend: FrontendPage) -> None:
    """Measure every setting, and write each as it comes."""
    cluster = Cluster(options.hosts)
    cluster.lay()
    settings = page.kept(options, "settings")
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
            setting = {**where, "command": page.command(), **told, **result}
            settings = page.joined(settings, [setting], page.WHICH)
            write(settings, options, of_frontend)
            print(of_frontend.table(setting), flush=True)


def write(
    settings: list[dict[str, Any]], options: argparse.Namespace, of_frontend: FrontendPage
) -> None:
    """OUTPUT.json and OUTPUT.md."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    made_with = page.environment(options)
    text = json_by_line({"made_with": made_with}, {"settings": settings})
    options.output.with_suffix(".json").write_text(text, encoding="utf-8")
    rendered = render(settings, made_with, of_frontend)
    options.output.with_suffix(".md").write_text(rendered, encoding="utf-8")


def render(
    settings: list[dict[str, Any]], made_with: dict[str, Any], of_frontend: FrontendPage
) -> str:
    """Markdown."""
    parts = [
        of_frontend.introduction,
        f"Made with {', '.join(f'{name} {value}' for name, value in made_with.items())}.\n",
    ]
    for setting in settings:
        rate = "unshaped" if setting["rate"] == "none" else setting["rate"]
        where = (
            f"{setting['hosts']} hosts, {rate}, {setting['model']}, "
            f"{of_frontend.compute[setting['compute']]}, {setting['controller']}"
        )
        parts.append(f"## {where}\n")
        parts.append(
            f"Probe: {setting['wire']}. Load of the machine: {setting['load']:.1f}; other machines "
            f"took {setting['stolen']:.1%} of its cores' time.\n"
        )
        parts.append(of_frontend.table(setting) + "\n")
        verdicts = setting.get("verdicts", {})
        parts += [f"{method}: {verdict}.\n" for method, verdict in verdicts.items()]
    return "\n".join(parts)
