"""Whole trainings over a real wire, until they are as good as dense training is at its end."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.figure import Figure

from benchmarks._page import Goal, command, made_with, markdown_table, write
from benchmarks.network import probe
from benchmarks.network.cluster import Cluster
from benchmarks.network.launching import launch

TASK_NAMES = ("perceptron", "words", "vgg")
PEER_DENSITY = 0.01
"""Of exact top-k and DGC, which GRACE's authors take."""
QUICK_STEPS = 24
LIMIT_S = 6 * 3600
NEARLY = 0.99
"""The part of dense's last score that is nearly there."""
HOROVOD_FREE = "powersgd"
"""What methods begin with that are hooks of DDP."""
COLOURS = {"dense": "#000000", "fp16": "#999999", "powersgd": "#cc79a7", "topk": "#d55e00"}
COLOURS |= {"dgc": "#e69f00", "auto": "#56b4e9"}
OURS = "#0072b2"
GOALS = (
    *(("perceptron", "1gbit", "dense", 3), ("perceptron", "1gbit", "fp16", 1.8)),
    *(("vgg", "1gbit", "dense", 3), ("vgg", "1gbit", "fp16", 1.8), ("words", "1gbit", "dense", 2)),
    *((task, "100mbit", "dense", 12) for task in TASK_NAMES),
    *((task, "100mbit", "fp16", 6) for task in TASK_NAMES),
    ("perceptron", "10gbit", "dense", 0.95),
)
"""On 2 hosts a task on a wire is to reach dense's last score so many times as soon as a method."""


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes
    ----------
    task : of ``tasks.TASKS``
    method : as the command line has it
    hosts : which share a step's examples
    wire : as tc writes a rate, or "none"
    density : of peers; ours follows from the steps
    steps : of the run
    rate : the learning rate that it begins with
    seed : of the network's parameters and of the order of the data
    """

    task: str
    method: str
    hosts: int
    wire: str
    density: float
    steps: int
    rate: float
    seed: int = 0


class Store:
    """Results by training, in the page's JSON: what is there is not trained again."""

    def __init__(self, output: Path) -> None:
        self.results: dict[Training, dict[str, Any]] = {}
        path = output.with_suffix(".json")
        if path.exists():
            for row in json.loads(path.read_text(encoding="utf-8"))["runs"]:
                self.results[Training(**row["training"])] = row["result"]

    def rows(self) -> list[dict[str, Any]]:
        """Return all of it, JSON-able, in an order of its own."""
        runs = sorted(self.results.items(), key=lambda run: str(sorted(asdict(run[0]).items())))
        return [{"training": asdict(run), "result": result} for run, result in runs]

    def like(self, wanted: Training) -> Iterator[tuple[Training, dict[str, Any]]]:
        """Yield the runs that differ from one in learning rate and seed alone."""
        for run, result in self.results.items():
            if replace(run, rate=wanted.rate, seed=wanted.seed) == wanted:
                yield run, result


class Bench:
    """Trainings on a cluster, and the page of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.store = Store(options.output)
        self.cluster = Cluster(options.hosts)
        self._shaped: str | None = None
        self._probe = ""

    def train(self, run: Training) -> dict[str, Any]:
        """Return the result of a training, made now or earlier."""
        if run not in self.store.results:
            self._shape(run.wire)
            controller = "mpi" if run.method.startswith(HOROVOD_FREE) else self.options.controller
            arguments = [json.dumps(asdict(run))]
            found = launch(self.cluster, controller, "training_worker", arguments, LIMIT_S)
            found |= {"probe": self._probe, "load": os.getloadavg()[1]}
            self.store.results[run] = {**found, "command": command("scripts/bench-network")}
            write_page(self.store, self.options)
            seconds, score = found["curve"][-1][1], found["score"]
            print(f"{run}: {seconds:.1f} s, {score:.3f}", flush=True)
        return self.store.results[run]

    def _shape(self, wire: str) -> None:
        if wire != self._shaped:
            rate = None if wire == "none" else wire
            self.cluster.shape(rate)
            self._shaped, self._probe = wire, probe.describe(probe.measure(self.cluster, rate))

    def rate_of(self, run: Training) -> float:
        """Return the learning rate with which the first seed ends best, searched without a shaped
        wire: three rates of the ladder, and further ones while the best is at an end.

        fp16 takes dense's, from which it differs by rounding alone; 4 hosts take that of 2, where
        it was searched, as they share the same steps.
        """
        task = _tasks()[run.task]
        method = "dense" if run.method == "fp16" else run.method
        run = replace(run, method=method, wire="none", seed=0)
        for hosts in sorted({each.hosts for each in self.store.results}):
            tried = list(self.store.like(replace(run, hosts=hosts)))
            if hosts != run.hosts and len({each.rate for each, _ in tried}) > 2:
                return best(tried, is_loss=task.is_loss)
        low, high = len(task.rates) // 2 - 1, len(task.rates) // 2 + 1
        while True:
            tried = [
                (each, self.train(each))
                for each in (replace(run, rate=rate) for rate in task.rates[low : high + 1])
            ]
            found = best(tried, is_loss=task.is_loss)
            if found == task.rates[low] and low > 0:
                low -= 1
            elif found == task.rates[high] and high + 1 < len(task.rates):
                high += 1
            else:
                return found


def best(tried: Sequence[tuple[Training, dict[str, Any]]], *, is_loss: bool) -> float:
    """Return the rate that scored best; one whose loss is no number scores worst."""

    def score(each: tuple[Training, dict[str, Any]]) -> float:
        found = each[1]["score"]
        return -math.inf if math.isnan(found) else -found if is_loss else found

    return max(tried, key=score)[0].rate


def run(options: argparse.Namespace) -> None:
    """Search rates, then train every method of every task over every wire."""
    bench, tasks = Bench(options), _tasks()
    bench.cluster.lay()
    for name in options.train:
        task, wanted = tasks[name], []
        for method in options.methods:
            if method == "dgc" and task.optimizer == "adamw":
                continue  # it corrects momentum
            steps = options.steps or (QUICK_STEPS if options.quick else task.steps)
            first = Training(name, method, options.hosts, "none", options.density, steps, 0.0)
            rate = task.rates[len(task.rates) // 2] if options.quick else bench.rate_of(first)
            wanted.append(replace(first, rate=rate))
        for wire in options.rates:
            for first in wanted:
                for seed in range(options.seeds):
                    bench.train(replace(first, wire=wire, seed=seed))
    page = write_page(bench.store, options)
    print(page)


def _tasks() -> dict[str, Any]:
    from benchmarks.network.tasks import TASKS  # with torch

    return TASKS


@dataclass(frozen=True)
class Line:
    """A method on one wire, with the rate that ended best there, and all its seeds."""

    run: Training
    results: list[dict[str, Any]]

    @property
    def last(self) -> float:
        """Return the last score of the curves, over the seeds."""
        return mean(result["curve"][-1][2] for result in self.results)

    def of_a_step(self, name: str) -> float:
        """Return the median of a figure over the seeds."""
        return median(result[name] for result in self.results)

    def reached_s(self, mark: float, *, is_loss: bool) -> float | None:
        """Return the median of the seconds until a score is reached; None if not every seed
        reaches it."""
        found = [reached_s(result["curve"], mark, is_loss=is_loss) for result in self.results]
        return None if None in found else median(s for s in found if s is not None)


def reached_s(
    curve: Sequence[Sequence[float]], mark: float, *, is_loss: bool = False
) -> float | None:
    """Return when a curve of (steps, seconds, score) first is at a score, by a straight line
    between its points; None if it never is."""
    sign = -1.0 if is_loss else 1.0
    before: tuple[float, float] | None = None
    for _, seconds, score in curve:
        if sign * score >= sign * mark:
            if before is None or score == before[1]:
                return float(seconds)
            part = (mark - before[1]) / (score - before[1])
            return float(before[0] + part * (seconds - before[0]))
        before = seconds, score
    return None


def lines_of(store: Store) -> list[list[Line]]:
    """Return the lines of every setting: of a task on so many hosts and a wire, in as many
    steps."""
    wires = sorted({run.wire for run in store.results}, key=_slowness)

    def setting(run: Training) -> tuple[int, int, int, int]:
        return TASK_NAMES.index(run.task), run.hosts, wires.index(run.wire), run.steps

    def line(run: Training) -> tuple[str, float]:
        return run.method, run.density

    tasks, groups = _tasks(), []
    for _, members in groupby(sorted(store.results, key=setting), key=setting):
        lines = []
        runs = sorted(members, key=lambda run: (_order(run.method), line(run)))
        for _, alike in groupby(runs, key=line):
            tried = [(run, store.results[run]) for run in alike]
            firsts = [each for each in tried if each[0].seed == 0] or tried
            rate = best(firsts, is_loss=tasks[firsts[0][0].task].is_loss)
            lines.append(Line(firsts[0][0], [r for run, r in tried if run.rate == rate]))
            lines[-1] = replace(lines[-1], run=replace(lines[-1].run, rate=rate, seed=0))
        groups.append(lines)
    return groups


def _slowness(wire: str) -> float:
    from benchmarks.network.cluster import bits_per_second

    return math.inf if wire == "none" else bits_per_second(wire)


def _order(method: str) -> int:
    known = list(COLOURS)
    return next((known.index(each) for each in known if method.startswith(each)), len(known))


def write_page(store: Store, options: argparse.Namespace) -> str:
    """Write JSON, page and picture; return the page."""
    groups = lines_of(store)
    head = {"made_with": made_with(), "quick": options.quick, "peer_density": options.density}
    commands = list(dict.fromkeys(result["command"] for result in store.results.values()))
    sections = [
        {
            "title": title(lines[0].run),
            "task": _tasks()[lines[0].run.task],
            "run": lines[0].run,
            "probe": lines[0].results[0]["probe"],
            "load": max(r["load"] for line in lines for r in line.results),
            "is_short_of_cores": lines[0].run.hosts > (os.cpu_count() or 1),
            "table": table(lines),
            "verdicts": [
                (line.run.method, verdict)
                for line in lines
                if (verdict := line.results[0]["verdict"])
            ],
        }
        for lines in groups
    ]
    shown = {"commands": commands, "sections": sections, "goals": goals_table(groups)}
    draw(groups, options.output.with_suffix(".png"))
    return write(options.output, "trainings.md", head, {"runs": store.rows()}, **shown)


def title(run: Training) -> str:
    """Return a setting in words."""
    wire = "unshaped" if run.wire == "none" else run.wire
    return f"{run.task}, {run.hosts} hosts, {wire}, {run.steps} steps"


def dense_of(lines: Sequence[Line]) -> Line | None:
    """Return dense among the lines of a setting."""
    return next((line for line in lines if line.run.method == "dense"), None)


def marks(lines: Sequence[Line]) -> dict[str, tuple[float, dict[str, float | None]]]:
    """Return by "nearly" and "end" the score of dense, and the seconds of each method until it;
    nothing where dense was not trained."""
    dense = dense_of(lines)
    if dense is None:
        return {}
    is_loss = _tasks()[dense.run.task].is_loss
    nearly = dense.last / NEARLY if is_loss else dense.last * NEARLY
    return {
        name: (mark, {x.run.method: x.reached_s(mark, is_loss=is_loss) for x in lines})
        for name, mark in (("nearly", nearly), ("end", dense.last))
    }


def table(lines: Sequence[Line]) -> str:
    """Return a line a method."""
    header = ["method", "rate", "seeds", "received, kB a step", "step, ms", "all threads, ms"]
    header += ["training thread, ms", "all steps, s", "score at the end"]
    header += ["99 % of dense's, s", "times dense", "dense's end, s", "times dense"]
    found, rows = marks(lines), []
    for line in lines:
        scores = [result["score"] for result in line.results]
        cells = [f"`{line.run.method}`", f"{line.run.rate:g}", len(scores)]
        cells.append(f"{line.of_a_step('received') / 1e3:,.0f}")
        cells += [f"{line.of_a_step(name):,.1f}" for name in ("step_ms", "worked_ms", "trained_ms")]
        cells.append(f"{median(result['curve'][-1][1] for result in line.results):,.1f}")
        spread = f" ({min(scores):.3f} to {max(scores):.3f})" if len(scores) > 1 else ""
        cells.append(f"{mean(scores):.3f}{spread}")
        for _, seconds in found.values():
            mine, dense = seconds[line.run.method], seconds["dense"]
            cells.append("never" if mine is None else f"{mine:,.1f}")
            cells.append("" if mine is None or dense is None else f"{dense / mine:.2f}")
        rows.append(cells)
    return markdown_table(header[: len(rows[0])], rows)


def goals_table(groups: Sequence[Sequence[Line]]) -> str:
    """Return a line a goal that was measured: how many times as soon as another method the best
    of ours reaches dense's last score."""
    rows = []
    for task, wire, method, times in GOALS:
        goal = Goal(times, is_most=False)
        for lines in groups:
            run = lines[0].run
            if (run.task, run.wire, run.hosts) != (task, wire, 2) or not marks(lines):
                continue
            seconds = marks(lines)["end"][1]
            ours = [s for name, s in seconds.items() if _order(name) >= _order("auto") and s]
            other = seconds.get(method)
            if other is None or method not in seconds:
                continue
            figure = other / min(ours) if ours else 0.0
            verdict = goal.verdict(figure) if ours else "never there"
            rows.append([f"{title(run)}, over {method}", str(goal), f"{figure:.2f}", verdict])
    header = ["until dense's last score", "goal", "measured", ""]
    return markdown_table(header, rows) if rows else ""


def draw(groups: Sequence[Sequence[Line]], path: Path) -> None:
    """Draw scores over seconds, a panel a setting, of the first seed."""
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(groups) :]:
        panel.set_axis_off()
    for panel, lines in zip(panels.flat, groups):
        for line in lines:
            known = [each for each in COLOURS if line.run.method.startswith(each)]
            _, seconds, scores = zip(*line.results[0]["curve"])
            colour = COLOURS[known[0]] if known else OURS
            panel.plot(seconds, scores, color=colour, label=line.run.method, linewidth=1.4)
        dense = dense_of(lines)
        if dense is not None:
            panel.axhline(dense.last, color="#000000", linewidth=0.6, linestyle=":")
        task = _tasks()[lines[0].run.task]
        panel.set_ylabel("nats a word" if task.is_loss else "test accuracy, %", fontsize=8)
        panel.set_xlabel("seconds of training", fontsize=8)
        panel.set_xscale("log")
        panel.set_title(title(lines[0].run), fontsize=9)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=110)
