"""What codecs, densities and local steps cost in accuracy, seed by seed: the work of ``hvd-sparse
bench paired``.

Short trainings by the simulated workers of ``bench accuracy``, and local steps on real ranks. Both
sides of a pair have the same seed: the same first parameters and the same batches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from benchmarks._accuracy_matrix import WORKERS, dense_line
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_simulated import simulate
from benchmarks._accuracy_store import Store
from benchmarks._accuracy_tasks import TASKS
from benchmarks._limited import ROOT, run_limited
from benchmarks._streams import markdown_table
from hvd_sparse.autotune.costmodel.densities import hiding_densities
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.profile import Layer, Profile
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_text import spell_density
from hvd_sparse.exchanges.contract import DENSE_BYTES
from hvd_sparse.frontend.torch.arrays import spec_of

SEEDS, STEPS = 5, 210
CODEC_TASK, CODEC_RATE = "digits", 0.05
HIDING_TASK, HIDING_RATE, HIDING_STEPS, HIDING_SEEDS = "gpt", 0.004, 60, 5
C_MAX, BANDWIDTH_BIT_S, LATENCY_S, RANKS, BACKWARD_S = 1000.0, 1e8, 50e-6, 4, 0.05
PASSES = 20
EVERY = (1, 4, 16)
MANY_WORKERS, MANY_DENSITY = (4, 8, 16, 32), 0.01
LIMIT_S = 1800
FLOAT32 = "topk"
VALUES = {
    "bfloat16, `block16`": "topk,codec=block16",
    "4 bits, `block16`": "topk,codec={'id': 'block16', 'values': 'int4'}",
    "2 bits, `block16`": "topk,codec={'id': 'block16', 'values': 'int2'}",
    "2 bits, `golomb`": "topk,codec={'id': 'golomb', 'values': 'int2'}",
    "2 bits, `chunk12`": "topk,codec=chunk12",
}
"""Codecs beside ``index_value``, whose values are float32."""
CHUNKED = "2 bits, `chunk12`"
"""SparseLoCo's wire, also at its own density."""
DENSITIES = {0.01: tuple(VALUES), 1 / 64: (CHUNKED,)}
TEXT = """# Choices, seed by seed

What codecs of few bits, densities that hide and local steps cost in accuracy, beside the same
training without them. Made by `hvd-sparse bench paired`. Both sides of a pair have the same seed:
the same first parameters, the same batches. *Worse by* is the mean of the differences of the
pairs, with its standard error: below two of them it says nothing. Small tasks, trained for seconds:
they say that a choice works, and not what it costs on a large one.

"""
CODECS_TEXT = """## Values of few bits

Exact top-k with error feedback on scikit-learn's digits, {workers} simulated workers, {steps} steps
of SGD with momentum 0.9 that is handed over, rate {rate:g}, {seeds} seeds; beside float32 values
with 32-bit indices (`index_value`). What rounding takes stays in the residual.

"""
WORKERS_TEXT = """
## One leader's indices among more workers

ScaleCom sends one worker's indices for all. The same training at density {density:g}, whose batch
of 64 is shared by ever more workers, beside dense.

"""
HIDING_TEXT = """
## Densities that hide

A small GPT ({task}, {steps} steps of AdamW that is handed over, rate {rate:g}, {workers} simulated
workers, {seeds} seeds), exact top-k. Its layers' densities are those of LAGS's rule
([densities that hide](../methods/index.md#densities-that-hide)) for 4 hosts at 100 Mbit/s and a
backward pass of 50 ms, in whose proportions it was measured here, with c_max 1,000; beside one
density for all layers that sends as many bytes. Worse by is in % of perplexity. Layers for which
dense moves no more bytes run dense.

"""
LOCAL_TEXT = """
## Exchange every few steps

`horovodrun -np 2 python examples/pytorch_local_steps.py`, on real ranks: the digits, 25 epochs of
SGD, density 1/64 with values of 2 bits (`chunk12`), {seeds} seeds; beside an exchange at every
step.

"""


@dataclass(frozen=True)
class Pair:
    """A line, and the one that it is compared with."""

    what: str
    line: Line
    beside: Line


def worker_pairs(steps: int) -> Iterator[Pair]:
    """Yield ScaleCom with ever more workers beside dense, which is the same for any number."""
    beside = dense_line(CODEC_TASK, "momentum", steps)
    for workers in MANY_WORKERS:
        line = replace(
            _line(CODEC_TASK, "momentum", "scalecom", MANY_DENSITY, steps), workers=workers
        )
        yield Pair(str(workers), line, beside)


def codec_pairs(steps: int) -> Iterator[Pair]:
    """Yield the codecs beside float32 values, at every density."""
    for density, named in DENSITIES.items():
        beside = _line(CODEC_TASK, "momentum", FLOAT32, density, steps)
        for what in named:
            yield Pair(what, _line(CODEC_TASK, "momentum", VALUES[what], density, steps), beside)


def hiding_pair(densities: dict[str, float], steps: int) -> Pair:
    """Return layers' own densities beside one that sends as many bytes."""
    specs = [spec_of(*named) for named in TASKS[HIDING_TASK].network().named_parameters()]
    own = Configuration.create(selector={"id": "topk", "density": densities}).for_tensors(specs)
    entry_bytes = own.codec.entry_bytes(1, 0.5)
    sent = numel = 0.0
    for spec in specs:
        if own.is_sparse(spec.shape, spec.numel):
            is_dense = own.goes_dense(spec, 0, WORKERS)
            count = count_from_density(spec.numel, densities[spec.key])
            sent += spec.numel * DENSE_BYTES if is_dense else count * entry_bytes
            numel += spec.numel
    uniform = float(f"{sent / entry_bytes / numel:.4g}")
    mine, same = (
        _line(HIDING_TASK, "adamw", FLOAT32, density, steps)
        for density in (spell_density(densities), uniform)
    )
    return Pair(f"densities that hide, beside {uniform:g}", mine, same)


def _line(task: str, optimizer: str, method: str, density: float | str, steps: int) -> Line:
    return Line(task, optimizer, method, density, "handed", 0.0, WORKERS, steps)


def _compressed(network: nn.Module) -> Iterator[tuple[str, int]]:
    configuration = Configuration.create(selector={"id": "topk", "density": 0.01})
    for name, parameter in network.named_parameters():
        if configuration.is_sparse(tuple(parameter.shape), parameter.numel()):
            yield name, parameter.numel()


def measured_profile() -> Profile:
    """Return the layers of the GPT with the proportions of its backward pass on this machine."""
    torch.set_num_threads(1)
    task = TASKS[HIDING_TASK]
    data, network = task.load(), task.network()
    compressed, came = dict(_compressed(network)), {}
    for name, parameter in network.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: came.__setitem__(name, time.perf_counter())
        )
    passes: list[dict[str, float]] = []
    for step in range(PASSES):
        loss = data.loss(network, data.draw(0, step, task.batch // WORKERS))
        began_s = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        passes.append({name: at_s - began_s for name, at_s in came.items()})
    ready_s = {name: statistics.median(each[name] for each in passes) for name in came}
    layers, before_s = [], 0.0
    for name, parameter in sorted(network.named_parameters(), key=lambda item: ready_s[item[0]]):
        gap_s = max(0.0, ready_s[name] - before_s)
        layers.append(Layer(name, parameter.numel(), gap_s, name in compressed))
        before_s += gap_s
    return Profile(tuple(layers)).scaled(BACKWARD_S)


def hidden_densities(profile: Profile) -> dict[str, float]:
    """Return the density of each compressed layer at which it hides, by name."""
    setting = Setting.on(Network(BANDWIDTH_BIT_S, LATENCY_S), RANKS, CPU)
    configuration = Configuration.create(
        selector={"id": "topk", "density": 1 / C_MAX}, allow_dense=False
    )
    layers = profile.compressed.layers
    plan = tuple(range(1, len(layers) + 1))
    found = hiding_densities(profile, configuration, setting, plan, 1 / C_MAX, 1.0)
    return {layer.name: float(f"{d:.3g}") for layer, d in zip(layers, found)}


def run(options: argparse.Namespace) -> int:
    """Train what is not in the folder yet, and write the page."""
    options.output.mkdir(parents=True, exist_ok=True)
    store = Store(options.output / "paired.json")
    others = Others(options.output / "paired-others.json")
    seeds, hiding_seeds, steps, hiding_steps = SEEDS, HIDING_SEEDS, STEPS, HIDING_STEPS
    if options.quick:
        seeds, hiding_seeds, steps, hiding_steps = 2, 2, 8, 4
    densities = others.get("densities", lambda: hidden_densities(measured_profile()))
    codecs, hiding = list(codec_pairs(steps)), hiding_pair(densities, hiding_steps)
    many = list(worker_pairs(steps))
    runs = [
        Run(line, CODEC_RATE, seed)
        for pair in (*codecs, *many)
        for line in (pair.beside, pair.line)
        for seed in range(seeds)
    ]
    runs += [
        Run(line, HIDING_RATE, seed)
        for line in (hiding.beside, hiding.line)
        for seed in range(hiding_seeds)
    ]
    for one in track(list(dict.fromkeys(runs)), "training", transient=True):
        if one not in store.results:
            store.add(one, simulate(one))
    local = others.get("local", lambda: local_steps(seeds, is_quick=options.quick))
    (options.output / "paired.md").write_text(page(codecs, many, hiding, densities, local, store))
    Console(width=120).print(f"paired.md, and what it is made of, are in {options.output}")
    return 0


class Others:
    """What is kept beside the runs, by name, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Any) -> Any:
        """Return what is kept under a name; make it first where it is missing."""
        if name not in self._kept:
            self._kept[name] = make()
            self._path.write_text(json.dumps(self._kept, indent=1) + "\n")
        return self._kept[name]


def local_steps(seeds: int, *, is_quick: bool) -> dict[str, Any]:
    """Return accuracies by seed in %, and bytes a step, by the number of local steps."""
    launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", "2"]
    program = [sys.executable, str(ROOT / "examples" / "pytorch_local_steps.py")]
    options = ["--every", *map(str, EVERY), "--seeds", *map(str, range(1, seeds + 1))]
    options += ["--epochs", "1"] if is_quick else []
    code, printed = run_limited([*launcher, *program, *options], os.environ, LIMIT_S)
    if code != 0:
        raise RuntimeError(f"the local steps ended with {code}:\n{printed[-4000:]}")
    return read_local_steps(printed)


def read_local_steps(printed: str) -> dict[str, Any]:
    """Return what the example has printed, by the number of local steps."""
    found = re.findall(r"every +(\d+): accuracy ([\d.%, ]+); ([\d,]+) bytes a step", printed)
    return {
        every: {
            "scores": [float(score) for score in re.findall(r"[\d.]+", scores)],
            "bytes": int(nbytes.replace(",", "")),
        }
        for every, scores, nbytes in found
    }


def difference(worse: Sequence[float]) -> str:
    """Return the mean of paired differences, with its standard error."""
    error = statistics.stdev(worse) / math.sqrt(len(worse)) if len(worse) > 1 else math.nan
    return f"{statistics.mean(worse):+.2f} ± {error:.2f}"


def page(
    codecs: Sequence[Pair],
    many: Sequence[Pair],
    hiding: Pair,
    densities: dict[str, float],
    local: dict[str, Any],
    store: Store,
) -> str:
    """Return the page of all pairs."""
    told = {"workers": WORKERS, "steps": codecs[0].line.steps, "rate": CODEC_RATE}
    text = TEXT + CODECS_TEXT.format(seeds=len(_scores(codecs[0].line, CODEC_RATE, store)), **told)
    heads = ["values", "density", "accuracy", "beside", "worse by", "bytes a step", "beside"]
    text += markdown_table(heads, [_codec_cells(pair, store) for pair in codecs]) + "\n"
    text += WORKERS_TEXT.format(density=MANY_DENSITY)
    heads = ["workers", "accuracy", "beside", "worse by", "bytes a step"]
    text += markdown_table(heads, [_many_cells(pair, store) for pair in many]) + "\n"
    own, same = (_scores(line, HIDING_RATE, store) for line in (hiding.line, hiding.beside))
    told = {"steps": hiding.line.steps, "rate": HIDING_RATE, "seeds": len(own)}
    text += HIDING_TEXT.format(task=HIDING_TASK, workers=WORKERS, **told)
    worse = [100 * math.expm1(mine - other) for mine, other in zip(own, same)]
    cells = [
        hiding.what, f"{math.exp(np.mean(own)):.3f}", f"{math.exp(np.mean(same)):.3f}",
        difference(worse), *_bytes(hiding, HIDING_RATE, store),
    ]  # fmt: skip
    heads = ["", "perplexity", "beside", "worse by, %", "bytes a step", "beside"]
    text += markdown_table(heads, [cells]) + "\n\n"
    rows = [[f"`{name}`", f"{density:g}"] for name, density in densities.items()]
    text += markdown_table(["layer, as its gradient comes", "density"], rows) + "\n"
    first = local[str(EVERY[0])]
    text += LOCAL_TEXT.format(seeds=len(first["scores"]))
    rows = [
        [
            every, f"{np.mean(each['scores']):.2f} %",
            "" if each is first else difference(
                [one - mine for one, mine in zip(first["scores"], each["scores"])]
            ),
            f"{each['bytes']:,}",
        ]
        for every, each in local.items()
    ]  # fmt: skip
    return text + markdown_table(["every", "accuracy", "worse by", "bytes a step"], rows) + "\n"


def _many_cells(pair: Pair, store: Store) -> list[str]:
    own, same = (_scores(line, CODEC_RATE, store) for line in (pair.line, pair.beside))
    worse = [other - mine for mine, other in zip(own, same)]
    means = [f"{np.mean(scores):.2f} %" for scores in (own, same)]
    return [pair.what, *means, difference(worse), _bytes(pair, CODEC_RATE, store)[0]]


def _codec_cells(pair: Pair, store: Store) -> list[str]:
    own, same = (_scores(line, CODEC_RATE, store) for line in (pair.line, pair.beside))
    worse = [other - mine for mine, other in zip(own, same)]
    means = [f"{np.mean(scores):.2f} %" for scores in (own, same)]
    density = float(pair.line.density or 0)
    return [
        pair.what, f"{density:.4g}", *means, difference(worse), *_bytes(pair, CODEC_RATE, store)
    ]  # fmt: skip


def _scores(line: Line, rate: float, store: Store) -> list[float]:
    """Return the scores of a line, by seed."""
    found = {run.seed: result for run, result in store.results.items() if _is(run, line, rate)}
    return [found[seed]["score"] for seed in sorted(found)]


def _bytes(pair: Pair, rate: float, store: Store) -> list[str]:
    means = []
    for line in (pair.line, pair.beside):
        sent = [result["bytes"] for run, result in store.results.items() if _is(run, line, rate)]
        means.append(f"{np.mean(sent):,.0f}")
    return means


def _is(run: Run, line: Line, rate: float) -> bool:
    return run.line == line and run.rate == rate
