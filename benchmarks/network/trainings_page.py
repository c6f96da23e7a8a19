"""The page and the pictures of whole trainings over a network."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._page import Goal, made_with, markdown_table, write
from benchmarks.network.cluster import bits_per_second
from benchmarks.network.training_store import TASK_NAMES, Store, Training, best, tasks
from hvd_sparse.cli.advise import Model, Setting
from hvd_sparse.methods.builder import density_for

NEARLY = 0.99
"""Fraction of dense's last score that counts as nearly reached."""
COLOURS = {"dense": "#000000", "fp16": "#999999", "powersgd": "#cc79a7", "topk": "#d55e00"}
COLOURS |= {"dgc": "#e69f00", "auto": "#56b4e9"}
OURS = "#0072b2"
GOALS = (
    *(("perceptron", "1gbit", "dense", 3), ("perceptron", "1gbit", "fp16", 1.8)),
    *(("vgg", "1gbit", "dense", 3), ("vgg", "1gbit", "fp16", 1.8)),
    *((task, "1gbit", "dense", 2) for task in ("words", "words_epsilon")),
    *((task, "100mbit", "dense", 12) for task in TASK_NAMES),
    *((task, "100mbit", "fp16", 6) for task in TASK_NAMES),
    ("perceptron", "10gbit", "dense", 0.95),
)
"""Task, bandwidth, method, and how many times earlier than this method ours should reach dense's
last score, on 2 hosts."""


@dataclass(frozen=True)
class Line:
    """A method in one setting: its best learning rate, and the results of all seeds in order."""

    run: Training
    results: list[dict[str, Any]]

    @property
    def lasts(self) -> list[float]:
        return [result["curve"][-1][2] for result in self.results]

    def of_a_step(self, name: str) -> float:
        return median(result[name] for result in self.results)

    def reached_s(self, marks: Sequence[float], *, is_loss: bool) -> float | None:
        """Return the median over the seeds of the seconds until the seed reaches its score in
        ``marks``, or the first score if it has none; None if a seed never reaches it."""
        of_each = zip(self.results, chain(marks, repeat(marks[0])))
        found = [reached_s(result["curve"], mark, is_loss=is_loss) for result, mark in of_each]
        return None if None in found else median(s for s in found if s is not None)


def reached_s(
    curve: Sequence[Sequence[float]], mark: float, *, is_loss: bool = False
) -> float | None:
    """Return when a curve first reaches a score, in interpolated seconds; None if it never does."""
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
    """Return the lines of every setting, which consists of task, hosts, bandwidth and steps."""
    wires = sorted({run.wire for run in store.results}, key=bits_per_second)

    def setting(run: Training) -> tuple[int, int, int, int]:
        return TASK_NAMES.index(run.task), run.hosts, wires.index(run.wire), run.steps

    def line(run: Training) -> tuple[str, float]:
        return run.method, run.density

    def place(run: Training) -> tuple[int, tuple[str, float], int]:
        return _order(run.method), line(run), run.seed

    groups = []
    for _, members in groupby(sorted(store.results, key=setting), key=setting):
        lines = []
        for _, alike in groupby(sorted(members, key=place), key=line):
            tried = [(run, store.results[run]) for run in alike]
            firsts = [each for each in tried if each[0].seed == 0] or tried
            rate = best(firsts, is_loss=tasks()[firsts[0][0].task].is_loss)
            lines.append(Line(firsts[0][0], [r for run, r in tried if run.rate == rate]))
            lines[-1] = replace(lines[-1], run=replace(lines[-1].run, rate=rate, seed=0))
        groups.append(lines)
    return groups


def _order(method: str) -> int:
    known = list(COLOURS)
    return next((known.index(each) for each in known if method.startswith(each)), len(known))


def _is_ours(method: str) -> bool:
    """Return whether a method is one of ours without options, which are the recommended ones."""
    return _order(method) >= _order("auto") and "," not in method


def write_page(store: Store, options: argparse.Namespace) -> str:
    groups = lines_of(store)
    head = {"made_with": made_with(), "quick": options.quick, "peer_density": options.density}
    sections = [
        {
            "title": title(lines[0].run),
            "task": tasks()[lines[0].run.task],
            "run": lines[0].run,
            "probe": lines[0].results[0]["probe"],
            "load": max(r["load"] for line in lines for r in line.results),
            "is_short_of_cores": is_short_of_cores(lines[0].run),
            "table": table(lines, step_alone(groups, lines[0].run)),
            "verdicts": [
                (line.run.method, verdict)
                for line in lines
                if (verdict := line.results[0]["verdict"])
            ],
        }
        for lines in groups
    ]
    shown = {"commands": commands(groups), "sections": sections, "goals": goals_table(groups)}
    draw(groups, options.output.with_suffix(".png"))
    draw_headline(groups, options.output.with_name(f"{options.output.name}-headline.svg"))
    lists = {"notes": store.notes, "runs": store.rows()}
    return write(options.output, "trainings.md", head, lists, notes=store.notes, **shown)


def commands(groups: Sequence[Sequence[Line]]) -> list[str]:
    """Return a command for each task and number of hosts. Together they make all trainings."""

    def setting(line: Line) -> tuple[str, int, int]:
        return line.run.task, line.run.hosts, line.run.steps

    found = []
    for (task, hosts, steps), members in groupby(chain(*groups), key=setting):
        lines = list(members)
        methods = dict.fromkeys(x.run.method for x in lines)
        wires = dict.fromkeys(x.run.wire for x in lines)
        told = ["scripts/bench-network", "--train", task, "--hosts", str(hosts)]
        told += ["--seeds", str(max(len(x.results) for x in lines)), "--rates", *wires]
        told += ["--steps", str(steps)] if steps != tasks()[task].steps else []
        found.append(" ".join([*told, "--methods", *methods]))
    return found


def title(run: Training) -> str:
    wire = "unshaped" if run.wire == "none" else run.wire
    return f"{run.task}, {run.hosts} hosts, {wire}, {run.steps} steps"


def dense_of(lines: Sequence[Line]) -> Line | None:
    return next((line for line in lines if line.run.method == "dense"), None)


def marks(lines: Sequence[Line]) -> dict[str, dict[str, float | None]]:
    """Return the seconds until each method reaches 99 % ("nearly") and all ("end") of the last
    score of dense training with the same seed."""
    dense = dense_of(lines)
    if dense is None:
        return {}
    is_loss = tasks()[dense.run.task].is_loss
    part = 1 / NEARLY if is_loss else NEARLY
    nearly = [part * score for score in dense.lasts]
    return {
        name: {x.run.method: x.reached_s(scores, is_loss=is_loss) for x in lines}
        for name, scores in (("nearly", nearly), ("end", dense.lasts))
    }


LATENCY_S = 50e-6
"""Latency between the hosts that ``advise`` assumes; the limit of the rate adds none."""


def is_short_of_cores(run: Training) -> bool:
    return run.hosts > (os.cpu_count() or 1)


def step_alone(groups: Sequence[Sequence[Line]], run: Training) -> tuple[float, float] | None:
    """Return the median milliseconds of the gradients and of the optimizer's update in a step of
    ``run`` without Horovod; None if unknown, or if hosts share cores. Older results do not tell the
    two apart, and count both as gradients."""
    if is_short_of_cores(run):
        return None
    alike = [x for x in chain(*groups) if (x.run.task, x.run.hosts) == (run.task, run.hosts)]
    results = [result for line in alike for result in line.results]
    found = [(r["gradient_ms"], r["update_ms"]) for r in results if "update_ms" in r]
    found = found or [(r["alone_ms"], 0.0) for r in results if "alone_ms" in r]
    if not found:
        return None
    gradients_ms, updates_ms = zip(*found)
    return median(gradients_ms), median(updates_ms)


def advised_ms(line: Line, alone_ms: tuple[float, float]) -> float | None:
    """Return the milliseconds of a step of dense, fp16 or our method that ``hvd-sparse advise``
    predicts from the times of a step without Horovod; None if there is no prediction."""
    run = line.run
    is_ours = run.method != "auto" and _is_ours(run.method)
    if run.wire == "none" or not (is_ours or run.method in ("dense", "fp16")):
        return None
    gradient_s, update_s = (each / 1e3 for each in alone_ms)
    task, backward_s = tasks()[run.task], gradient_s * 2 / 3
    if is_ours and not update_s and task.optimizer == "adamw":
        return None  # a sparse step replaces a long step of the optimizer, which is unknown
    setting = Setting(
        Model(task.parameters, task.matrices, backward_s), backward_s / 2, run.hosts,
        bits_per_second(run.wire), LATENCY_S, signs=True, one_core=True, update_s=update_s,
    )  # fmt: skip
    step = setting.step("sparse", density_for(run.steps)) if is_ours else setting.step(run.method)
    return 1e3 * step.step_s


def table(lines: Sequence[Line], alone_ms: tuple[float, float] | None = None) -> str:
    header = ["method", "rate", "seeds", "received, kB a step", "step, ms", "advised, ms"]
    header += ["all threads, ms", "training thread, ms", "all steps, s", "score at the end"]
    header += ["99 % of dense's, s", "times dense", "dense's end, s", "times dense"]
    found, rows = marks(lines), []
    for line in lines:
        scores = [result["score"] for result in line.results]
        timed = line.results[0].get("timed_steps")
        name = f"`{line.run.method}`" + (f" ({timed} steps)" if timed else "")
        cells = [name, f"{line.run.rate:g}", len(scores)]
        cells.append(f"{line.of_a_step('received') / 1e3:,.0f}")
        advised = alone_ms and advised_ms(line, alone_ms)
        cells += [f"{line.of_a_step('step_ms'):,.1f}", f"{advised:,.1f}" if advised else ""]
        cells += [f"{line.of_a_step(name):,.1f}" for name in ("worked_ms", "trained_ms")]
        cells.append(f"{median(result['curve'][-1][1] for result in line.results):,.1f}")
        spread = f" ({min(scores):.3f} to {max(scores):.3f})" if len(scores) > 1 else ""
        cells.append(f"{mean(scores):.3f}{spread}")
        for seconds in found.values():
            mine, dense = seconds[line.run.method], seconds["dense"]
            cells.append("never" if mine is None else f"{mine:,.1f}")
            cells.append("" if mine is None or dense is None else f"{dense / mine:.2f}")
        rows.append(cells)
    return markdown_table(header[: len(rows[0])], rows)


def goals_table(groups: Sequence[Sequence[Line]]) -> str:
    """Return a table with a row for each goal: how many times earlier than another method ours
    reaches dense's last score."""
    rows = []
    for task, wire, method, times in GOALS:
        goal = Goal(times, is_most=False)
        for lines in groups:
            run = lines[0].run
            if (run.task, run.wire, run.hosts) != (task, wire, 2) or not marks(lines):
                continue
            seconds = marks(lines)["end"]
            ours = [s for name, s in seconds.items() if s and _is_ours(name)]
            other = seconds.get(method)
            if other is None or method not in seconds:
                continue
            figure = other / min(ours) if ours else 0.0
            verdict = goal.verdict(figure) if ours else "never there"
            rows.append([f"{title(run)}, over {method}", str(goal), f"{figure:.2f}", verdict])
    header = ["until dense's last score", "goal", "measured", ""]
    return markdown_table(header, rows) if rows else ""


def draw(groups: Sequence[Sequence[Line]], path: Path) -> None:
    columns = min(3, len(groups))
    figure, panels = _panels(len(groups), columns)
    for panel, lines in zip(panels, groups):
        for line in lines:
            _, seconds, scores = zip(*line.results[0]["curve"])
            panel.plot(seconds, scores, color=_colour(line), label=line.run.method, linewidth=1.4)
        dense = dense_of(lines)
        if dense is not None:
            panel.axhline(dense.lasts[0], color="#000000", linewidth=0.6, linestyle=":")
        panel.set_ylabel(_axis(lines[0].run), fontsize=8)
        panel.set_xscale("log")
        panel.set_title(title(lines[0].run), fontsize=9)
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=110)


HEADLINE = (("perceptron", "1gbit"), ("words_epsilon", "1gbit"), ("perceptron", "100mbit"))
"""Tasks and bandwidths of README's picture. It shows those that were measured on 2 hosts."""
NAMES = {"dense": "dense", "fp16": "fp16", "ours": "hvd_sparse"}
WIRES = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}


def draw_headline(groups: Sequence[Sequence[Line]], path: Path) -> None:
    """Draw README's picture: scores over seconds with dense, fp16, our method and the baseline that
    first reaches dense's last score. The speed-up is written at our curve."""
    by_setting = {(lines[0].run.task, lines[0].run.wire): lines for lines in groups
                  if lines[0].run.hosts == 2 and dense_of(lines)}  # fmt: skip
    shown = [by_setting[setting] for setting in HEADLINE if setting in by_setting]
    if not shown:
        return
    figure, panels = _panels(len(shown), len(shown))
    for panel, lines in zip(panels, shown):
        run, seconds = lines[0].run, marks(lines)["end"]
        dense = dense_of(lines)
        assert dense is not None
        for line in _four_of(lines, seconds):
            is_ours = _order(line.run.method) > _order("auto")
            name = NAMES.get("ours" if is_ours else line.run.method, line.run.method)
            reached = seconds[line.run.method]
            label = f"{name}: {_times(seconds['dense'], reached)}" if line is not dense else name
            _, x, y = zip(*line.results[0]["curve"])
            panel.plot(x, y, color=_colour(line), label=label, linewidth=2.4 if is_ours else 1.4)
            if reached is not None:
                panel.plot(reached, dense.lasts[0], "o", color=_colour(line), markersize=5)
        panel.axhline(dense.lasts[0], color="#000000", linewidth=0.6, linestyle=":")
        panel.set_ylabel(_axis(run), fontsize=8)
        panel.set_xscale("log")
        panel.set_title(f"{tasks()[run.task].title}\n{WIRES[run.wire]}", fontsize=8)
        panel.legend(fontsize=8, loc="upper right" if tasks()[run.task].is_loss else "lower right")
    figure.savefig(path)


def _four_of(lines: Sequence[Line], seconds: Mapping[str, float | None]) -> list[Line]:
    peers = [x for x in lines if _order("fp16") < _order(x.run.method) < _order("auto")]
    first = min(peers, key=lambda x: seconds[x.run.method] or math.inf, default=None)
    kept = [x for x in lines if x.run.method in ("dense", "fp16")]
    ours = [x for x in lines if _order(x.run.method) > _order("auto")]
    return [*kept, *([first] if first else []), *ours]


def _times(dense: float | None, mine: float | None) -> str:
    return "not reached" if mine is None or dense is None else f"{dense / mine:.1f}x as soon"


def _axis(run: Training) -> str:
    return "nats a word" if tasks()[run.task].is_loss else "test accuracy, %"


def _colour(line: Line) -> str:
    known = (each for each in COLOURS if line.run.method.startswith(each))
    return next((COLOURS[each] for each in known), OURS)


def _panels(count: int, columns: int) -> tuple[Figure, list[Axes]]:
    rows = -(-count // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_axis_off()
    for panel in panels[:count]:
        panel.set_xlabel("seconds of training", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
    return figure, panels[:count]
