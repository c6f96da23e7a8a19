"""Predictions of ``hvd-sparse simulate`` from costs measured by ``hvd-sparse advise``, beside real
steps."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.network import page, probe, simulated_page
from benchmarks.network.cluster import Cluster
from benchmarks.network.simulated_page import FEWEST, OWN, SCALED
from benchmarks.network.stolen_time import StolenTime
from benchmarks.network.summary import by_round, spread
from benchmarks.network.timings import ready
from hvd_sparse.autotune.costmodel.architectures import parameters
from hvd_sparse.autotune.costmodel.profile import MIN_NUMEL, Layer, Profile
from hvd_sparse.cli import main as hvd_sparse
from hvd_sparse.registry import EXCHANGES

SELECTOR = "ldte_bs"
DENSE = ("dense", "fp16")
WHICH = ("rate", "hosts", "model", "compute")
"""What tells settings apart."""
Run = Callable[[Cluster, argparse.Namespace, str, str], dict[str, Any]]
Launch = Callable[[Cluster, str, list[str], Path], dict[str, Any]]


def exchanges() -> list[str]:
    """Return the exchanges that run where every rank has a host of its own, without ``auto``, which
    is one of them."""
    return [id for id in EXCHANGES if id != "auto" and not EXCHANGES.get(id).needs_nodes]


def spec(exchange: str, density: float) -> str:
    """A method as ``methods.create`` reads it."""
    return f"{SELECTOR},exchange={exchange},density={density:g},groups=planned"


def run(options: argparse.Namespace, run_setting: Run, launch: Launch) -> None:
    """Measure on 2 hosts and more, at every rate, and write each result as it comes.

    Every method has a launch of its own: Horovod's cycles take longer the more tensors it knows,
    and a real run has one method.
    """
    methods = [*DENSE, *(spec(id, density) for density in options.densities for id in exchanges())]
    Cluster(options.hosts).lay()
    rows, settings = page.kept(options, "rows"), page.kept(options, "settings")
    for rate in options.rates:
        few = next(
            (s["costs"] for s in settings if (s["rate"], s["hosts"]) == (rate, FEWEST)), None
        )
        for hosts in range(options.least_hosts, options.hosts + 1):
            cluster, shaped = Cluster(hosts), None if rate == "none" else rate
            cluster.shape(shaped)
            wire, neighbours = page.describe_wire(probe.measure(cluster, shaped)), StolenTime()
            costs = measure_costs(cluster, options, launch)
            few = costs if hosts == FEWEST or few is None else few
            for model, compute in product(options.models, options.compute):
                where = {"rate": rate, "hosts": hosts, "model": model, "compute": compute}
                steps = []
                for method in methods:
                    options.methods = [method]
                    steps += run_setting(cluster, options, model, compute)["rows"]
                profile = replayed(model, compute, options.backward_ms / 1e3)
                found = rows_of(steps, options.densities, {OWN: costs, SCALED: few}, profile, hosts)
                more = [{**where, **row} for row in found]
                rows = _in_order(page.joined(rows, more, (*WHICH, "way", "density")))
                told = {"command": page.command(), "wire": wire, "load": os.getloadavg()[1]}
                told |= {"stolen": neighbours.share(), "costs": costs, "steps": steps}
                settings = _in_order(page.joined(settings, [{**where, **told}], WHICH))
                simulated_page.write(rows, settings, options)
                print(simulated_page.table(more), flush=True)


def _in_order(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows by rate and hosts, and otherwise as they came."""
    return sorted(measured, key=lambda each: (each["rate"], each["hosts"]))


def measure_costs(cluster: Cluster, options: argparse.Namespace, launch: Launch) -> dict[str, Any]:
    """Return the costs that ``hvd-sparse advise`` measures on these hosts, with all of them at work
    at once."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-costs-") as folder:
        output = Path(folder) / "costs.json"
        program = [sys.executable, "-m", "hvd_sparse", "advise", "--measure", "--method", SELECTOR]
        program += ["--json", "--save", str(output), *(["--quick"] if options.quick else [])]
        return launch(cluster, options.controller, program, output)


def replayed(model: str, compute: str, backward_s: float) -> Profile:
    """The backward pass that the ranks replay, in its order."""
    listed = parameters(model)
    done = (
        ready(model, [(each.name, each) for each in listed])
        if compute != "none"
        else [0.0] * len(listed)
    )
    order = sorted(range(len(listed)), key=lambda i: (done[i], -i))
    layers, before = [], 0.0
    for i in order:
        is_sparse = len(listed[i].shape) > 1 and listed[i].numel >= MIN_NUMEL
        layers.append(
            Layer(listed[i].name, listed[i].numel, (done[i] - before) * backward_s, is_sparse)
        )
        before = done[i]
    return Profile(tuple(layers), is_apart=compute == "asleep")


def predict(
    profile: Profile, costs: dict[str, Any], ranks: int, density: float
) -> dict[str, dict[str, Any]]:
    """Return the predictions of ``hvd-sparse simulate`` for dense, fp16 and every exchange on so
    many ranks."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-simulated-") as folder:
        layers, measured = Path(folder, "layers.json"), Path(folder, "costs.json")
        layers.write_text(profile.to_json(), encoding="utf-8")
        measured.write_text(json.dumps(costs), encoding="utf-8")
        arguments = ["--model", str(layers), "--costs", str(measured), "--world-size", str(ranks)]
        arguments += ["--method", SELECTOR, "--density", str(density), "--json", "--output", folder]
        with contextlib.redirect_stdout(io.StringIO()):  # the file has it too
            code = hvd_sparse(["simulate", *arguments])
        if code != 0:
            raise RuntimeError("hvd-sparse simulate has failed")
        document = json.loads(Path(folder, "simulation.json").read_text(encoding="utf-8"))
    return {point["method"]: point for point in document["points"]}


def rows_of(
    steps: list[dict[str, Any]],
    densities: list[float],
    costs: dict[str, dict[str, Any]],
    profile: Profile,
    hosts: int,
) -> list[dict[str, Any]]:
    """A row a way to send: seconds of a step, predicted and measured.  Dense and fp16 have no
    density.

    costs : by the prefix of what is predicted from them
    """
    rows = []
    for density in densities:
        points = {name: predict(profile, each, hosts, density) for name, each in costs.items()}
        ways = {id: spec(id, density) for id in exchanges()}
        if density == densities[0]:
            ways = {**{id: id for id in DENSE}, **ways}
        for id, method in ways.items():
            seconds = by_round(steps, method)
            row: dict[str, Any] = {"way": id, "density": None if id in DENSE else density}
            row["measured_s"] = spread(seconds)
            for name, found in points.items():
                predicted_s = found[id]["step_s"]
                row |= {
                    f"{name}predicted_s": predicted_s,
                    f"{name}over_predicted": spread(seconds / predicted_s),
                }
            rows.append(row)
    return rows
