"""Selection cost, beside one pass over memory and baselines: ``python -m benchmarks select``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import track

from benchmarks._contestants import FLOOR, SELECTORS, Both, Ours, floor, peers, receivers
from benchmarks._gradients import Gradients
from benchmarks._interleaved_timing import Contestant, Times, race
from benchmarks._page import Goal, Quartiles, made_with, markdown_table, write
from hvd_sparse.registry import ENGINES

DENSITIES = (0.0001, 0.001, 0.01, 0.05)
DENSITY = 0.001
"""Density of the picture's panel by size, and of receiving."""
PAYLOADS = (1, 2, 4, 8, 16)
GOALS = {
    ("large", 0.0001): {"": 1.3},
    ("large", 0.001): {"": 1.3, ", rollback": 1.6},
    ("large", 0.01): {"": 1.3, ", rollback": 1.6},
    ("large", 0.05): {"": 2.5},
    ("small", 0.001): {"": 2.0},
    ("small", 0.01): {"": 2.0},
}
"""Goals: largest ratio to the floor, by size, density and the suffix of the selector's name."""
PEER_GOALS = {"DGC, sampled threshold": 10, "Gaussian-k": 15, "torch.topk": 30}
"""Goals: smallest ratio of a baseline's time to ours."""
RECEIVING_GOAL = 1.5
"""Goal for sixteen payloads: largest ratio to the time of writing the dense gradient."""


@dataclass(frozen=True)
class Scale:
    """Sizes of vectors, and numbers of rounds."""

    large: int = 25_000_000  # entries; this and the next have goals
    small: int = 1_000_000
    sizes: tuple[int, ...] = (10_000, 100_000, 10_000_000, 100_000_000)
    rounds: int = 32  # of the large vector; the others take as long, within bounds
    warm: int = 40  # rounds before, in which thresholds settle

    def rounds_of(self, entries: int) -> int:
        return min(8 * self.rounds, max(-(-self.rounds // 4), self.rounds * self.large // entries))

    def every(self, entries: int) -> int:
        return max(2, min(8, self.rounds_of(entries) // 4)) if entries >= 1_000_000 else 1


QUICK = Scale(large=40_000, small=10_000, sizes=(2_000, 100_000), rounds=2, warm=2)

# Okabe and Ito's palette; markers and dashes say it again.
STYLES = {
    FLOOR: ("#000000", "", "-"),
    "ldte_bs": ("#0072B2", "s", "-"),
    "topk": ("#56B4E9", "o", "-"),
    "torch.topk": ("#D55E00", "v", "--"),
    "DGC, sampled threshold": ("#009E73", "^", "--"),
    "Gaussian-k": ("#E69F00", "D", "--"),
}


@dataclass(frozen=True)
class Line:
    """One row of a table. All rows of a section have the same floor."""

    section: str
    what: str
    entries: int
    density: float
    milliseconds: Quartiles
    times_floor: Quartiles | None = None  # round by round
    times_ours: Quartiles | None = None  # of peers, over the slower of our steps
    goal: Goal | None = None  # of the median of the last that is there

    @property
    def verdict(self) -> str:
        judged = self.times_ours or self.times_floor
        return "" if self.goal is None or judged is None else self.goal.verdict(judged.median)

    def cells(self) -> list[Any]:
        figures = [self.milliseconds, self.times_floor, self.times_ours]
        return [self.what, *figures, self.goal, self.verdict]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=ENGINES.ids(), help="engine (default: the fastest that is installed)"
    )


def run(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    scale = QUICK if options.quick else Scale()
    vectors = [(scale.large, density, "large") for density in DENSITIES]
    vectors += [(scale.small, density, "small") for density in (0.001, 0.01)]
    vectors += [(entries, DENSITY, "") for entries in scale.sizes]
    lines = [
        line
        for entries, density, size in track(vectors, "vectors", transient=True)
        for line in vector(scale, entries, density, size, options.engine)
    ]
    lines += receiving(scale, options.engine)
    header = ["", "ms", "times the floor", "times ours", "goal", ""]
    sections = {
        name: markdown_table(header, [line.cells() for line in members])
        for name, members in groupby(lines, lambda line: line.section)
    }
    missed = [line for line in lines if line.verdict.startswith("missed")]
    shown = {
        "judged": sum(line.goal is not None for line in lines),
        "missed": markdown_table(
            header, [[f"{x.section}: {x.what}", *x.cells()[1:]] for x in missed]
        ),
        "is_missed": bool(missed),
        "sections": sections,
        "ours": " and ".join(f"`{id}`" for id in SELECTORS),
    }
    head = {"made_with": made_with(), "quick": options.quick, "scale": asdict(scale)}
    rows = [{**asdict(line), "goal": str(line.goal or ""), "is": line.verdict} for line in lines]
    output = options.output / "selecting"
    print(write(output, "selecting.md", head, {"lines": rows}, **shown))
    draw(lines, output.with_suffix(".png"))
    return 0


def vector(
    scale: Scale, entries: int, density: float, size: str, engine: str | None
) -> Iterator[Line]:
    """Time selectors and baselines on one tensor. Residuals begin as they are after many steps."""
    gradients = Gradients.draw(entries, seed=entries)
    residual = gradients.steady_residual(density, seed=1)
    behind = GOALS.get((size, density), {"": None})
    goals = {f"{id}{end}": limit for end, limit in behind.items() for id in SELECTORS}
    ours = {
        name: Ours(
            entries,
            {"id": name.split(",")[0], "density": density},
            rollback="rollback" in name,
            engine=engine,
            residual=residual,
        )
        for name in goals
    }
    others = peers(residual, density, every=scale.every(entries))
    contestants = [floor(residual), *(Contestant(name, each.step) for name, each in ours.items())]
    times = race(
        [*contestants, *others],
        lambda step: Both.of(gradients.at(step)),
        warm=scale.warm,
        rounds=scale.rounds_of(entries),
    )
    section = f"{entries:,} entries, density {density:g}"
    for name in (FLOOR, *goals):
        limit = goals.get(name)
        goal = None if limit is None else Goal(limit)
        yield _line(times, name, section, entries, density, goal)
    for peer in others:
        least = PEER_GOALS.get(peer.name) if size == "large" else None
        goal = None if least is None else Goal(least, is_most=False)
        yield _line(times, peer.name, section, entries, density, goal, SELECTORS)


def receiving(scale: Scale, engine: str | None) -> Iterator[Line]:
    """Time the summation of the payloads of several ranks into a dense gradient. The floor writes
    the dense gradient once."""
    entries = scale.large
    gradients = Gradients.draw(entries, seed=entries)
    contestants = receivers(gradients, DENSITY, PAYLOADS, engine)
    times = race(contestants, lambda step: None, warm=2, rounds=scale.rounds_of(entries))
    section = f"receiving, {entries:,} entries, density {DENSITY:g}"
    written = contestants[0].name
    for each in contestants:
        goal = Goal(RECEIVING_GOAL) if each is contestants[-1] else None
        yield _line(times, each.name, section, entries, DENSITY, goal, floor_name=written)


def _line(
    times: Times,
    name: str,
    section: str,
    entries: int,
    density: float,
    goal: Goal | None,
    ours: Sequence[str] = (),
    floor_name: str = FLOOR,
) -> Line:
    over_floor = None if name == floor_name else times.ratio(name, floor_name)
    over_ours = times.ratio(name, *ours) if ours else None
    figures = (times.milliseconds(name), over_floor, over_ours)
    return Line(section, name, entries, density, *figures, goal)


def draw(lines: Sequence[Line], path: Path) -> None:
    vectors = [line for line in lines if not line.section.startswith("receiving")]
    largest = max(line.entries for line in vectors if line.density != DENSITY)
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    by_size, by_density = figure.subplots(1, 2, sharey=True)
    for name, (colour, marker, dashes) in STYLES.items():
        style = {"color": colour, "marker": marker, "linestyle": dashes, "fillstyle": "none"}
        mine = [line for line in vectors if line.what == name]
        sizes = {x.entries: x.milliseconds for x in mine if x.density == DENSITY}
        densities = {x.density: x.milliseconds for x in mine if x.entries == largest}
        for panel, points in ((by_size, sizes), (by_density, densities)):
            places = sorted(points)
            panel.plot(places, [points[at].median for at in places], label=name, **style)
            low, high = ([getattr(points[at], end) for at in places] for end in ("low", "high"))
            panel.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
    by_size.set(xlabel=f"entries (density {DENSITY:g})", ylabel="ms a step, one thread")
    by_density.set(xlabel=f"density ({largest:,} entries)")
    for panel in (by_size, by_density):
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.25)
    handles, labels = by_size.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
