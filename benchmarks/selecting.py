"""Costs of selection, beside one pass over memory and beside peers: the work of ``scripts/bench
select``.

Every section is a race (``_interleaved_timing``): ours, the peers and the floor, on the same
gradients, in one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks import _hostile, _variants
from benchmarks import _select_lines as lines
from benchmarks._contestants import (
    FLOOR,
    SELECTORS,
    Ours,
    Round,
    floor,
    frames_of_ranks,
    ours_name,
    padded,
    peers,
    receivers,
)
from benchmarks._gradients import Gradients
from benchmarks._interleaved_timing import Contestant, Times, race
from benchmarks._models import large_tasks, small_tasks
from benchmarks._select_lines import Goal, Line, Scale
from benchmarks._select_page import table_of, write
from benchmarks._streams import Listener, Stream, environment, watch
from benchmarks.architectures import resnet50
from hvd_sparse.kernels.engines import FAST, is_fast_installed
from hvd_sparse.registry import ENGINES

PAYLOADS = (1, 2, 4, 8, 16)
DENSITY = 0.001
"""Of the network, of receiving and of the picture's sizes."""
SETTLED = 20
"""Steps of a training after which one pass is to be enough."""
WIDTH = 200
"""Characters, where the table goes to no terminal."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument(
        "--engine", choices=ENGINES.ids(), help="instead of the best that is installed"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="of the largest vector with goals; more make the spread smaller (32)",
    )
    parser.add_argument("--training-steps", type=int, help="of each of the real trainings (300)")
    parser.add_argument(
        "--hostile",
        action="store_true",
        help="only the worst steps: equal magnitudes, plateaus, spikes, subnormals",
    )
    parser.add_argument(
        "--variants",
        action="store_true",
        help='only methods with our settings beside those with variant="paper"',
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write JSON, picture and page.  0, whether or not goals are met."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    scale = scale_of(options)
    before = os.getloadavg()[0]
    if options.hostile:
        return run_hostile(options, console)
    if options.variants:
        return run_variants(options, console)
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bars, console=Console(stderr=True), transient=True) as progress:
        select = Select(scale, options.engine, progress)
        measured = [*select.vectors(), *select.network(), *select.receiving(), *select.threads()]
        trained = list(select.trainings())
    console.print(table_of(measured, trained, is_quick=options.quick))
    load = {"load average": f"{before:.1f} at the start and {os.getloadavg()[0]:.1f} at the end"}
    write(
        measured,
        trained,
        {**machine(), **environment(), **load},
        options.output,
        scale,
        is_quick=options.quick,
    )
    console.print(f"selecting.json, selecting.png and selecting.md are in {options.output}")
    return 0


def run_hostile(options: argparse.Namespace, console: Console) -> int:
    """Measure the worst steps, print them, write JSON and page.  0, whatever they are."""
    entries = _hostile.QUICK_ENTRIES if options.quick else _hostile.ENTRIES
    measured = list(
        _hostile.measure(entries, options.engine, lambda text: console.print(text, style="dim"))
    )
    console.print(_hostile.table_of(measured))
    made_with = {**machine(), **environment()}
    _hostile.write(measured, entries, made_with, options.output, is_quick=options.quick)
    console.print(f"selecting-hostile.json and selecting-hostile.md are in {options.output}")
    return 0


def run_variants(options: argparse.Namespace, console: Console) -> int:
    """Measure our settings beside the authors', print them, write JSON and page.  0, whatever they
    are."""
    entries = _variants.QUICK_ENTRIES if options.quick else _variants.ENTRIES
    measured = list(
        _variants.measure(entries, options.engine, lambda text: console.print(text, style="dim"))
    )
    console.print(_variants.table_of(measured))
    made_with = {**machine(), **environment()}
    _variants.write(measured, entries, made_with, options.output, is_quick=options.quick)
    console.print(f"selecting-variants.json and selecting-variants.md are in {options.output}")
    return 0


def scale_of(options: argparse.Namespace) -> Scale:
    """Return the extent that the options ask for."""
    scale = lines.QUICK if options.quick else lines.FULL
    asked = {"rounds": options.rounds, "training_steps": options.training_steps}
    return dataclasses.replace(
        scale, **{name: value for name, value in asked.items() if value is not None}
    )


def machine() -> dict[str, str]:
    """Return the processor by name, and the compilers."""
    info = Path("/proc/cpuinfo")
    models = (
        re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if info.exists()
        else []
    )
    name = models[0] if models else platform.processor()
    compiler = {"numba": metadata.version("numba")} if is_fast_installed() else {}
    return {"machine": f"{os.cpu_count()} cores of {name}", **compiler}


class Select:
    """The measurements of the bench, one after the other.

    Parameters
    ----------
    scale : how much
    engine : id, or None for the best that is installed
    progress : gets a bar a section
    """

    def __init__(self, scale: Scale, engine: str | None, progress: Progress) -> None:
        torch.set_num_threads(1)
        self.scale = scale
        self.engine = engine
        self.progress = progress

    def vectors(self) -> Iterator[Line]:
        """Time one tensor: of the two sizes with goals, at all densities, and of the picture's
        other sizes."""
        scale = self.scale
        for density in lines.DENSITIES:
            yield from self.vector(scale.large, density, "large")
        for density in (0.001, 0.01):
            yield from self.vector(scale.small, density, "small")
        for entries in scale.sizes:
            yield from self.vector(entries, DENSITY, "")

    def vector(self, entries: int, density: float, size: str) -> Iterator[Line]:
        """Time all selectors and peers on one tensor; ``size`` is its name among the goals."""
        section, shapes = f"{entries:,} entries, density {density:g}", [(entries,)]
        gradients = Gradients.draw(entries, seed=entries)
        residual = gradients.steady_residual(density, seed=1)
        goals = {ours_name(id): lines.OURS.get((size, density)) for id in SELECTORS}
        if (size, density) in lines.ROLLBACK:
            goals |= {
                ours_name(id, rollback=True): lines.ROLLBACK[size, density] for id in SELECTORS
            }
        contestants = [floor([residual])]
        for name in goals:
            selector = {"id": name.split(",")[0], "density": density}
            ours = Ours(
                shapes,
                selector,
                rollback="rollback" in name,
                engine=self.engine,
                residuals=[residual],
            )
            contestants.append(Contestant(name, ours.step))
        others = peers(residual, density, every=self.scale.every(entries))
        times = self.race(
            section,
            [*contestants, *others],
            lambda step: Round.cut(gradients.at(step), shapes),
            entries,
        )
        for contestant in contestants:
            yield _line(
                times, contestant.name, section, entries, density, goals.get(contestant.name)
            )
        for peer in others:
            goal = lines.PEERS.get(peer.name) if size == "large" else None
            yield _line(times, peer.name, section, entries, density, goal, versus=SELECTORS)

    def race(
        self,
        section: str,
        contestants: Sequence[Contestant],
        feed: Callable[[int], Any],
        entries: int,
    ) -> Times:
        rounds, warm = self.scale.rounds_of(entries), self.scale.warm
        bar = self.progress.add_task(section, total=rounds + warm)
        self.progress.console.print(section, style="dim")
        times = race(
            contestants, feed, warm=warm, rounds=rounds, advance=lambda: self.progress.advance(bar)
        )
        self.progress.remove_task(bar)
        return times

    def network(self) -> Iterator[Line]:
        """Time the parameters of ResNet-50: all compressed, and as the frontends do it, without
        those of one dimension."""
        every = [parameter.shape for parameter in resnet50(self.scale.width)]
        matrices = [shape for shape in every if len(shape) > 1]
        for what, shapes in (
            (f"all {len(every)} tensors", every),
            (f"{len(matrices)} tensors, none 1-D", matrices),
        ):
            for is_cold in (False, True):
                yield from self.tensors(
                    f"ResNet-50, {what}, {'cold' if is_cold else 'warm'}", shapes, is_cold
                )

    def tensors(self, section: str, shapes: list[tuple[int, ...]], is_cold: bool) -> Iterator[Line]:
        """Time many tensors, one after the other; cold is without the threshold and the residual of
        a last step."""
        total = sum(padded(int(np.prod(shape))) for shape in shapes)
        entries = sum(int(np.prod(shape)) for shape in shapes)
        gradients = Gradients.draw(total, seed=total)
        residuals = Round.cut(gradients.steady_residual(DENSITY, seed=1), shapes).flat
        contestants = [floor(residuals)]
        for id in SELECTORS:
            ours = Ours(
                shapes, {"id": id, "density": DENSITY}, engine=self.engine, residuals=residuals
            )
            contestants.append(Contestant(id, ours.step, before=ours.forget if is_cold else None))
        times = self.race(
            section, contestants, lambda step: Round.cut(gradients.at(step), shapes), entries
        )
        for contestant in contestants:
            goal = lines.NETWORK[is_cold] if contestant.name != FLOOR else None
            yield _line(times, contestant.name, section, entries, DENSITY, goal)

    def receiving(self) -> Iterator[Line]:
        """Time the decoding and summing of N payloads in a dense gradient of zeros, over writing
        that gradient once."""
        entries = self.scale.large
        gradients = Gradients.draw(entries, seed=entries)
        pipeline, frames = frames_of_ranks(gradients, DENSITY, max(PAYLOADS), self.engine)
        contestants = receivers(pipeline, entries, frames, PAYLOADS)
        section = f"decode and add up, {entries:,} entries, density {DENSITY:g}"
        times = self.race(section, contestants, lambda step: None, entries)
        write_once = contestants[0].name
        for contestant in contestants:
            goal = lines.RECEIVING if contestant.name != write_once else None
            yield _line(times, contestant.name, section, entries, DENSITY, goal, write_once)

    def threads(self) -> Iterator[Line]:
        """Time one thread and two, beside the gain of two threads on the floor, which memory
        bounds."""
        if self.engine not in (None, FAST) or not is_fast_installed():
            return
        entries, shapes = self.scale.large, [(self.scale.large,)]
        section = f"two threads, {entries:,} entries, density {DENSITY:g}"
        gradients = Gradients.draw(entries, seed=entries)
        residual = gradients.steady_residual(DENSITY, seed=1)
        pairs = [(floor([residual]), floor([residual], threads=2))]
        for id in SELECTORS:
            each = []
            for threads, words in ((1, "one thread"), (2, "two threads")):
                engine = {"id": FAST, "threads": threads}
                ours = Ours(
                    shapes, {"id": id, "density": DENSITY}, engine=engine, residuals=[residual]
                )
                each.append(Contestant(f"{id}, {words}", ours.step))
            pairs.append((each[0], each[1]))
        for (
            alone,
            together,
        ) in pairs:  # each pair by itself: the threads of torch go on spinning for a while
            times = self.race(
                section,
                (alone, together),
                lambda step: Round.cut(gradients.at(step), shapes),
                entries,
            )
            goal = lines.TWO_THREADS if alone.name != FLOOR else None
            yield _line(times, alone.name, section, entries, DENSITY, None, floor_name=None)
            yield _line(
                times,
                together.name,
                section,
                entries,
                DENSITY,
                goal,
                floor_name=None,
                gain_over=alone.name,
            )
        torch.set_num_threads(1)

    def trainings(self, densities: Sequence[float] = (0.001, 0.01)) -> Iterator[dict[str, Any]]:
        """Count the selections of real trainings, and of the tests' recorded gradients, for which
        one pass was enough."""
        for density in densities:
            for kind, tasks in (("", large_tasks()), (" as recorded for the tests", small_tasks())):
                for model in self.scale.models:
                    stream = Stream(tasks[model], density, self.scale.training_steps)
                    yield from self.training(f"{model}{kind}", stream, density)

    def training(self, model: str, stream: Stream, density: float) -> Iterator[dict[str, Any]]:
        settled = min(SETTLED, stream.steps // 2)
        is_one_pass: dict[str, list[bool]] = {id: [] for id in SELECTORS}
        listeners = [
            (id, tensor, Listener({"id": id, "density": density}, spec, self.engine))
            for id in SELECTORS
            for tensor, spec in stream.specs.items()
        ]
        for seen in watch(stream, self.progress, f"training: {model}, density {density:g}"):
            for id, tensor, listener in listeners:
                found = listener.step(seen.gradients[tensor]).found
                if seen.step > settled:
                    is_one_pass[id].append(found.is_one_pass)
        for id, counted in is_one_pass.items():
            share = float(np.mean(counted))
            yield {
                "model": model,
                "density": density,
                "selector": id,
                "selections": len(counted),
                "one_pass": share,
            }


def _line(
    times: Times,
    name: str,
    section: str,
    entries: int,
    density: float,
    goal: Goal | None,
    floor_name: str | None = FLOOR,
    versus: Sequence[str] = (),
    gain_over: str | None = None,
) -> Line:
    compared = times.ratio(name, *versus) if versus else None
    if gain_over is not None:
        compared = times.ratio(gain_over, name)
    return Line(
        section,
        name,
        entries,
        density,
        times.milliseconds(name),
        times.ratio(name, floor_name) if floor_name not in (None, name) else None,
        compared,
        goal,
        times.rounds(name),
    )
