"""Plans of every strategy for real models, on paper: the work of ``hvd-sparse bench planning``."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._streams import markdown_table
from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES, replayed
from hvd_sparse.autotune.costmodel.costs import Line
from hvd_sparse.autotune.costmodel.exact import exact
from hvd_sparse.autotune.costmodel.instance import Instance
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.planner import STRATEGIES
from hvd_sparse.autotune.costmodel.predict import sparse_instance
from hvd_sparse.autotune.costmodel.published import CPU, NETWORKS, P102_100
from hvd_sparse.autotune.costmodel.timeline import end_s, evaluate
from hvd_sparse.configuration import Configuration

mpl.use("Agg")
from matplotlib import pyplot as plt

DENSITY = 0.001
RANKS = (4, 16)
SETTINGS = {
    "published": "the constants of shi2020mgs: top-k over the merged group on a P102-100, two "
    "allgathers over 1 Gbit/s Ethernet, every tensor compressed",
    "1 Gbit/s": "selection per tensor on one core, one allgather over 1 Gbit/s with 50 us, small "
    "tensors dense",
    "10 Gbit/s": "the same over 10 Gbit/s",
}
SIZES = (54, 161, 449, 1000)
LONGER, LONGER_ROUNDS = 6, 2
"""Fronts so many times as long, in so many rounds, tell what thinning out costs."""
COLOURS = ("#0072b2", "#e69f00")


def published_instance(numel: np.ndarray, backward_s: np.ndarray, ranks: int) -> Instance:
    """Return an instance with the authors' constants."""
    start_s, byte_s = NETWORKS["omgs-1gbe"][ranks]
    sent = DENSITY * numel
    return Instance(
        backward_s,
        numel,
        sent,
        4 * ranks * sent,
        Line(2 * start_s, 2 * byte_s),
        P102_100,
        per_tensor=False,
    )


def real_instance(model: str, ranks: int, setting: str) -> Instance:
    """Return the instance of a model, its backward times by operations: batches of 32 at 10
    Tflop/s."""
    profile = replayed(model)
    if setting == "published":
        layers = profile.layers
        numel = np.array([layer.numel for layer in layers])
        return published_instance(numel, np.array([layer.backward_s for layer in layers]), ranks)
    network = Network(1e9 if setting == "1 Gbit/s" else 1e10, 5e-5)
    configuration = Configuration.create(selector={"id": "ldte_bs", "density": DENSITY})
    return sparse_instance(profile, configuration, Setting.on(network, ranks, CPU))


def random_instance(rng: np.random.Generator, layers: int) -> Instance:
    """Return an instance with sizes over four orders of magnitude, and backward times over two."""
    numel = np.exp(rng.uniform(np.log(1e3), np.log(1e7), layers)).astype(np.int64)
    return published_instance(
        numel, rng.uniform(1e-4, 1e-2, layers), int(rng.choice(list(NETWORKS["omgs-1gbe"])))
    )


def plans_of_models() -> list[dict[str, Any]]:
    """Return the milliseconds from the start of the backward pass to the end of the wire, by
    strategy."""
    rows = []
    for setting, model, ranks in itertools.product(SETTINGS, ARCHITECTURES, RANKS):
        instance = real_instance(model, ranks, setting)
        plans = {name: strategy(instance) for name, strategy in STRATEGIES.items()}
        found = exact(instance)
        rows.append(
            {
                "setting": setting,
                "model": model,
                "ranks": ranks,
                "layers": instance.size,
                "ms": {name: 1e3 * end_s(instance, plan) for name, plan in plans.items()},
                "groups": {name: len(plan) for name, plan in plans.items()},
                "plan": list(plans["exact"]),
                "is_exact": found.is_exact,
                "front": found.largest_front,
            }
        )
    return rows


def race(count: int) -> dict[str, float]:
    """Compare the strategies with the best plan on random instances of 3 to 10 layers."""
    rng = np.random.default_rng(8)
    excess, above_apart = [], []
    for _ in track(range(count), "random instances", transient=True):
        instance = random_instance(rng, int(rng.integers(3, 11)))
        steps = {
            name: end_s(instance, STRATEGIES[name](instance))
            for name in ("no_merge", "greedy", "exact")
        }
        excess.append(steps["greedy"] / steps["exact"] - 1)
        above_apart.append(steps["greedy"] / steps["no_merge"] - 1)
    return {
        "instances": count,
        "greedy_is_best": float(np.mean(np.array(excess) < 1e-9)),
        "mean_excess": float(np.mean(excess)),
        "worst_excess": float(np.max(excess)),
        "worse_than_no_merge": float(np.mean(np.array(above_apart) > 1e-9)),
        "worst_against_no_merge": float(np.max(above_apart)),
    }


def timings(sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Measure the planner's own time with merged selection, which is the harder case, for a wire
    about as long as the backward pass."""
    rng, rows = np.random.default_rng(9), []
    for layers in track(sizes, "timing the planner", transient=True):
        milliseconds, fronts, exacts, losses = [], [], [], [0.0]
        for number in range(rounds):
            made = random_instance(rng, layers)
            scale = 0.1  # all of it small, so that starting a message counts
            instance = published_instance(made.numel * scale, made.backward_s * scale, 16)
            started = time.process_time()
            found = exact(instance)
            milliseconds.append(1e3 * (time.process_time() - started))
            fronts.append(found.largest_front)
            exacts.append(found.is_exact)
            if not found.is_exact and number < LONGER_ROUNDS:
                longer = exact(instance, front_limit=LONGER * found.largest_front)
                losses.append(end_s(instance, found.plan) / end_s(instance, longer.plan) - 1)
        rows.append(
            {
                "layers": layers,
                "median_ms": statistics.median(milliseconds),
                "most_ms": max(milliseconds),
                "front": max(fronts),
                "exact": sum(exacts),
                "rounds": rounds,
                "loss": max(losses),
            }
        )
    return rows


def run(options: argparse.Namespace) -> int:
    """Plan, print the table, write JSON, picture and page."""
    models = plans_of_models()
    races = race(50 if options.quick else 1000)
    times = timings(SIZES[:2] if options.quick else SIZES, 2 if options.quick else 9)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {
        "quick": options.quick,
        "density": DENSITY,
        "models": models,
        "random": races,
        "planner": times,
    }
    (options.output / "planning.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    draw(options.output / "planning.png")
    (options.output / "planning.md").write_text(page(models, races, times), encoding="utf-8")
    table = Table(title="ms from the start of the backward pass to the end of the wire")
    for heading in HEADS:
        table.add_column(heading, justify="left" if heading in HEADS[:2] else "right")
    for row in models:
        table.add_row(*cells(row))
    Console(width=170).print(table)
    print(f"planning.json, planning.png and planning.md are in {options.output}")
    return 0


HEADS = [
    "setting",
    "model",
    "ranks",
    "layers",
    *STRATEGIES,
    "groups",
    "greedy over best",
    "best rule over best",
]


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    steps = row["ms"]
    best, rules = steps["exact"], [ms for name, ms in steps.items() if name != "exact"]
    gaps = [f"{abs(100 * (ms / best - 1)):.1f} %" for ms in (steps["greedy"], min(rules))]
    mark = "" if row["is_exact"] else " (thinned)"
    numbers = [f"{ms:,.1f}" for ms in steps.values()]
    return [row["setting"], row["model"], str(row["ranks"]), str(row["layers"]), *numbers,
            f"{row['groups']['exact']}{mark}", *gaps]  # fmt: skip


def draw(path: Path) -> None:
    """Draw the computing and the messages of ResNet-50 over time, under four plans."""
    instance = real_instance("resnet50", 16, "1 Gbit/s")
    shown = ("no_merge", "merge_all", "greedy", "exact")
    figure, panel = plt.subplots(figsize=(9, 3), layout="constrained")
    for row, name in enumerate(shown):
        timeline = evaluate(instance, STRATEGIES[name](instance))
        panel.broken_barh([(0, 1e3 * timeline.compute_s)], (row - 0.4, 0.35), color=COLOURS[0])
        spans = [
            (1e3 * span.sends_s, 1e3 * (span.sent_s - span.sends_s)) for span in timeline.spans
        ]
        panel.broken_barh(
            spans, (row - 0.02, 0.35), color=COLOURS[1], edgecolor="white", linewidth=0.4
        )
    panel.set_yticks(range(len(shown)), shown)
    panel.invert_yaxis()
    panel.set_xlabel("ms after the start of the backward pass")
    panel.set_title(
        "ResNet-50, 16 ranks, 1 Gbit/s, density 0.001: computing (blue) and messages (orange)"
    )
    figure.savefig(path, dpi=140)
    plt.close(figure)


def page(models: list[dict[str, Any]], races: dict[str, float], times: list[dict[str, Any]]) -> str:
    """Return the page in Markdown."""
    percent = {name: f"{100 * value:.1f} %" for name, value in races.items()}
    planner = [
        [str(row["layers"]), f"{row['median_ms']:.0f}", f"{row['most_ms']:.0f}", str(row["front"]),
         f"{row['exact']} of {row['rounds']}", f"{100 * row['loss']:.2f} %"]
        for row in times
    ]  # fmt: skip
    return "\n".join(
        [
            "# Plans, on paper",
            "",
            "`hvd-sparse bench planning` makes this page: nothing is sent, all times are the "
            "model's",
            "([planning](../planning.md)). Milliseconds from the start of the backward pass to "
            "the end of the wire, at density",
            "0.001. Backward times are in proportion to each layer's operations, batches of 32 at "
            "10 Tflop/s. *exact* is the",
            "planner that is used, and *groups* are its messages; *best rule* is the quickest of "
            "all other columns.",
            "",
            *(f"* *{name}*: {words}." for name, words in SETTINGS.items()),
            "",
            "![Who computes and who sends when](planning.png)",
            "",
            markdown_table(HEADS, [cells(row) for row in models]),
            "",
            "## Greedy on random instances",
            "",
            f"{races['instances']:,} instances of 3 to 10 layers with the authors' constants: "
            "1,000 to 10 million entries and",
            "0.1 to 10 ms a layer. The published greedy plan is the best one in "
            f"{percent['greedy_is_best']} of them, on",
            f"average {percent['mean_excess']} slower than it, at worst "
            f"{percent['worst_excess']}; it is slower than not",
            f"merging at all in {percent['worse_than_no_merge']}, by up to "
            f"{percent['worst_against_no_merge']}. A test",
            "holds *exact* to brute force.",
            "",
            "## What planning takes",
            "",
            "The processor's time, one thread; random layers, selection over merged groups, "
            "messages and computing of",
            "about equal length. *exact*: plans of which it is certain that none is quicker; "
            "*thinning costs*: the most by",
            f"which a front {LONGER} times as long made a step quicker, in {LONGER_ROUNDS} rounds.",
            "",
            markdown_table(
                ["layers", "median ms", "most ms", "longest front", "exact", "thinning costs"],
                planner,
            ),
            "",
        ]
    )
