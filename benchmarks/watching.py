"""What telemetry costs: steps without it beside steps that are watched.

    scripts/bench telemetry                    table and JSON in bench-output
    scripts/bench telemetry --models small     one of the models

One rank, with the tensors of networks of the examples or many small ones, and no computing, so that
a step is the compressor's own work and the share is the largest it can be.  A forward and a
backward pass of these networks are timed by themselves, which tells the share of a training step:
inside a training its own noise would hide what telemetry adds.  For every interval two sessions,
without and with a record every so many steps, take turns, each step in another order, and are
compared step by step; of the differences the median counts, of the steps with a record and of those
between two records by themselves, as few steps have one.  A record enters what the steps before it
noted, so that its cost is that at its interval.  Times are the whole process's processor time,
which other work on the machine disturbs less, and which has the writer's thread in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.frontend.outlet import Outlet
from hvd_sparse.frontend.recorder import Recorder
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.step.session import Session
from hvd_sparse.telemetry.contract import Place
from hvd_sparse.telemetry.jsonl import JsonLines
from hvd_sparse.types import TensorSpec

DENSITY = 0.001
TRAININGS = ("resnet20", "ptb", "resnet50")
"""Networks of the examples that are also computed, which needs torch."""
MODELS = ("small", *TRAININGS)
DEFAULT = Configuration.create(selector={"id": "topk", "density": 0.1}).telemetry_every
RECORDS, QUICK_RECORDS = {DEFAULT: 5, 10: 10, 1: 30}, {10: 1, 1: 3}
"""Records that are measured, by the steps of an interval."""


def specs_of(model: str) -> list[TensorSpec]:
    """Return the tensors of a model that are compressed."""
    if model == "small":
        return [TensorSpec(f"t{i}", (64, 64), "float32") for i in range(160)]
    from benchmarks._training_time import compressed_tensors  # with torch

    return compressed_tensors(model)


def measure(model: str, records: Mapping[int, int]) -> dict[str, Any]:
    """Return the median milliseconds of a step without telemetry, and by interval what a record
    adds, what is added to a step between two, and both as a part of the steps without; where it
    computes, also as a part of a step that does.

    records : how many are measured, by interval
    """
    specs = specs_of(model)
    draw = np.random.default_rng(0)
    gradients = {spec.key: draw.laplace(size=spec.shape).astype("f4") for spec in specs}

    def run(collective: LocalCollective) -> dict[int, list[tuple[float, float]]]:
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            writer = JsonLines(str(Path(folder) / "run.jsonl"))
            for every, count in records.items():
                found[every] = _pairs(specs, gradients, collective, writer, every, count * every)
        return found

    (pairs,) = LocalWorld(1, 600.0).run(run)
    off_s = statistics.median(off for each in pairs.values() for off, _ in each)
    computing_s = 0.0
    if model in TRAININGS:
        from benchmarks._training_time import computing_s as computing_s_of

        computing_s = computing_s_of(model)
    intervals = {str(every): _added(each, every, off_s) for every, each in pairs.items()}
    for told in intervals.values():
        told["training_share"] = told["share"] * off_s / (off_s + computing_s)
    return {
        "model": model,
        "tensors": len(specs),
        "entries": sum(spec.numel for spec in specs),
        "off_ms": 1e3 * off_s,
        "computing_ms": 1e3 * computing_s,
        "intervals": intervals,
    }


def _added(pairs: list[tuple[float, float]], every: int, off_s: float) -> dict[str, float]:
    """Return the milliseconds that a record and a step between two add, and their share.

    pairs : of whole intervals, from the step behind a record's on
    """
    added = [watched - off for off, watched in pairs]
    # A record is taken of an interval's last step, and made as the next step begins.
    record = statistics.median(added[every - 1 :: every])
    between = 0.0
    if every > 2:
        record += statistics.median(added[::every])
        others = [value for number, value in enumerate(added) if 0 < number % every < every - 1]
        between = statistics.median(others)
    share = (record + max(every - 2, 0) * between) / (every * off_s)
    return {"record_ms": 1e3 * record, "between_ms": 1e3 * between, "share": share}


def _pairs(
    specs: list[TensorSpec],
    gradients: dict[str, np.ndarray],
    collective: LocalCollective,
    writer: JsonLines,
    every: int,
    steps: int,
) -> list[tuple[float, float]]:
    """Return the processor seconds of each step without telemetry, and of the watched one."""
    sessions = []
    for kind in ("off", "watched"):
        made = Configuration.create(
            name=f"{kind} {every}", selector={"id": "ldte_bs", "density": DENSITY}, timeout_s=600.0
        )
        kernels = resolve_engine(made.engine)
        sessions.append(Session(made, specs, collective, kernels=kernels))
    recorder = Recorder(sessions[1].step, every, Outlet([writer], Place()))
    # The first interval warms up.
    pairs, draw = [], np.random.default_rng(every)
    for number in range(1, every + steps + 1):
        seconds = [0.0, 0.0]
        for kind in draw.permutation(2):
            began_s = time.process_time()
            sessions[kind].reduce(gradients)
            seconds[kind] = time.process_time() - began_s
        if number > every:
            pairs.append((seconds[0], seconds[1]))
    recorder.close()
    return pairs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of this bench."""
    parser.add_argument("--models", nargs="+", choices=MODELS)


def run(options: argparse.Namespace) -> int:
    """Measure, print a table and write the JSON; return the exit code."""
    models = options.models or (("small",) if options.quick else MODELS)
    lines = [measure(each, QUICK_RECORDS if options.quick else RECORDS) for each in models]
    table = Table(title="What telemetry adds to a step that computes nothing, and to a training's")
    headings = ("model", "tensors", "entries", "step ms", "computing ms", "every", "+ record")
    for heading in (*headings, "+ between", "share", "of training"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for line in lines:
        for every, told in line["intervals"].items():
            table.add_row(
                line["model"],
                str(line["tensors"]),
                f"{line['entries']:,}",
                f"{line['off_ms']:.2f}",
                f"{line['computing_ms']:.1f}" if line["computing_ms"] else "none",
                every,
                f"{told['record_ms']:.2f}",
                f"{told['between_ms']:.3f}",
                f"{100 * told['share']:.2f} %",
                f"{100 * told['training_share']:.2f} %" if line["computing_ms"] else "",
            )
    Console(width=130).print(table)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {"quick": options.quick, "default_every": DEFAULT, "lines": lines}
    (options.output / "telemetry.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0
