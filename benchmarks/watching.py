"""What telemetry costs: steps without it, steps between two records, and steps with one.

    hvd-sparse bench telemetry                    table and JSON in bench-output

One rank, with the sizes of ResNet-50's tensors or of many small ones, and no computing, so that a
step is the compressor's own work and the share is the largest it can be.  The three kinds of step
follow each other in every round, each time in another order, and are compared within the round; of
the differences the median counts.  Times are the whole process's processor time, which other work
on the machine disturbs less, and which has the writer's thread in it.  A record's cost is spread
over the steps of its interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hvd_sparse.autotune.costmodel.architectures import parameters
from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.core.step.session import Session
from hvd_sparse.frontend.outlet import Outlet
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.telemetry.contract import Place
from hvd_sparse.telemetry.jsonl import JsonLines
from hvd_sparse.types import TensorSpec

DENSITY = 0.001
ROUNDS, QUICK_ROUNDS = {"small": 200, "resnet50": 100}, 4
NEVER = 10**9
INTERVALS = (1, 10, 100)
DEFAULT = Configuration.create(selector={"id": "topk", "density": 0.1}).telemetry_every


def specs_of(model: str) -> list[TensorSpec]:
    """Return the tensors of a model that are compressed."""
    if model == "small":
        return [TensorSpec(f"t{i}", (64, 64), "float32") for i in range(160)]
    large = [each for each in parameters(model) if len(each.shape) > 1]
    return [TensorSpec(each.name, each.shape, "float32") for each in large]


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Return the median milliseconds of a step without telemetry, and what is added to it between
    records and by one."""
    specs = specs_of(model)
    options = {"selector": {"id": "ldte_bs", "density": DENSITY}, "timeout_s": 600.0}
    draw = np.random.default_rng(0)
    gradients = {spec.key: draw.laplace(size=spec.shape).astype("f4") for spec in specs}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "run.jsonl")

        def run(collective: LocalCollective) -> dict[str, list[float]]:
            sessions = {}
            for kind in ("off", "between", "record"):
                made = Configuration.create(name=kind, **options)
                kernels = resolve_engine(made.engine)
                sessions[kind] = Session(made, specs, collective, kernels=kernels)
            place = Place()
            writers = [JsonLines(path)]
            recorders = [
                Recorder(sessions["between"].step, NEVER, Outlet(writers, place)),
                Recorder(sessions["record"].step, 1, Outlet(writers, place)),
            ]
            seconds: dict[str, list[float]] = {kind: [] for kind in sessions}
            for number in range(-3, rounds):
                for kind in draw.permutation(list(sessions)):
                    began_s = time.process_time()
                    sessions[kind].reduce(gradients)
                    if number >= 0:
                        seconds[kind].append(time.process_time() - began_s)
            for recorder in recorders:
                recorder.close()
            return seconds

        (seconds,) = LocalWorld(1, 600.0).run(run)
    found = {"off": 1e3 * statistics.median(seconds["off"])}
    for kind in ("between", "record"):
        added = [with_it - off for with_it, off in zip(seconds[kind], seconds["off"])]
        found[kind] = 1e3 * statistics.median(added)
    return {
        "model": model,
        "tensors": len(specs),
        "entries": sum(spec.numel for spec in specs),
        **{f"{kind}_ms": value for kind, value in found.items()},
        "share": {str(every): share_of(found, every) for every in INTERVALS},
    }


def share_of(found: dict[str, float], every: int) -> float:
    """Return what telemetry adds to a step, as a part of the step without it."""
    added = ((every - 1) * found["between"] + found["record"]) / every
    return added / found["off"]


def run(options: argparse.Namespace) -> int:
    """Measure, print a table and write the JSON; return the exit code."""
    models = ("small",) if options.quick else ("small", "resnet50")
    lines = [measure(each, QUICK_ROUNDS if options.quick else ROUNDS[each]) for each in models]
    table = Table(title="What telemetry adds to a step that computes nothing")
    for heading in ("model", "tensors", "entries", "off ms", "+ between", "+ record"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for every in INTERVALS:
        table.add_column(f"every {every}", justify="right")
    for line in lines:
        table.add_row(
            line["model"],
            str(line["tensors"]),
            f"{line['entries']:,}",
            *(f"{line[f'{kind}_ms']:.3f}" for kind in ("off", "between", "record")),
            *(f"{100 * line['share'][str(every)]:.2f} %" for every in INTERVALS),
        )
    Console(width=120).print(table)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {"quick": options.quick, "default_every": DEFAULT, "lines": lines}
    (options.output / "telemetry.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0
