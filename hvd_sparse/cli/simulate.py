"""The command ``hvd-sparse simulate``: predicts the steps of every exchange on 2 to 4,096 ranks.

It prints seconds and scaling efficiency; nothing is sent.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from hvd_sparse.autotune.costmodel.network import MeasuredNetwork, Network
from hvd_sparse.autotune.costmodel.simulation import WORLD_SIZES, Point, simulate
from hvd_sparse.cli import _assumptions, _settings
from hvd_sparse.cli._commands import Commands
from hvd_sparse.density_text import known_density, spell_density
from hvd_sparse.frontend.table import table

BANDWIDTHS_BIT_S = (1e9, 10e9)
"""Bandwidths that are simulated where none is measured or given."""
COLOURS = {
    "dense": "#000000",
    "fp16": "#7f7f7f",
    "allgather": "#0072b2",
    "shared_index": "#009e73",
    "gtopk": "#d55e00",
    "oktopk": "#cc79a7",
    "hierarchical": "#e69f00",
}
"""Colours of methods; those that are not here take the plotting library's."""


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser(
        "simulate", help="predict steps on 2 to 4,096 ranks: table, JSON and a picture"
    )
    _settings.add_options(parser)
    parser.add_argument(
        "--density",
        type=known_density,
        default=0.001,
        help="a number, or NAME=DENSITY,... (%(default)s)",
    )
    parser.add_argument("--codec", default="index_value", help="(%(default)s)")
    parser.add_argument(
        "--bandwidth",
        type=_settings.bandwidth,
        nargs="+",
        help="of a node's link (1Gbit 10Gbit, or as --costs has measured)",
    )
    parser.add_argument("--latency", type=_settings.duration, help="between nodes (50us)")
    parser.add_argument(
        "--ranks-per-node",
        type=int,
        default=8,
        metavar="L",
        help="of the two-level networks (%(default)s)",
    )
    parser.add_argument(
        "--world-size", type=int, nargs="+", default=WORLD_SIZES, metavar="N", help="(2 to 4,096)"
    )
    parser.add_argument(
        "--hops", choices=("ring", "tree"), default="ring", help="of a collective (%(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench-output"),
        metavar="DIR",
        help="for JSON and picture (%(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print simulation.json; no page, no picture"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict, print and write the steps; return the exit code."""
    profile, (work, measured) = _settings.profile_of(options), _settings.costs_of(options)
    networks = networks_of(options, measured)
    points = list(
        simulate(
            profile,
            networks,
            work,
            density=options.density,
            codec=options.codec,
            method=options.method,
            world_sizes=options.world_size,
        )
    )
    assumed = _assumptions.of_model(options, profile) + _assumptions.of_work(work)
    assumed += _assumptions.of_networks(options, networks.values())
    options.output.mkdir(parents=True, exist_ok=True)
    document = {
        "model": options.model,
        "density": options.density,
        "backward_s": profile.backward_s,
        "other_s": profile.other_s,
        "assumed": assumed,
        "work": work.to_dict(),
        "networks": {name: asdict(network) for name, network in networks.items()},
        "points": [point.to_dict() for point in points],
    }
    text = json.dumps(document, indent=1)
    (options.output / "simulation.json").write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
        return 0
    for name, (heads, rows) in tables(points).items():
        print(table(heads, rows, title=f"{name}: ms a step (scaling efficiency)"), end="\n\n")
    print(_assumptions.in_lines(assumed))
    title = f"{Path(options.model).stem}, density {spell_density(options.density)}"
    _write_page(points, title, options.output)
    return 0


def _write_page(points: list[Point], title: str, folder: Path) -> None:
    """Write the page, with a picture if matplotlib is installed."""
    can_draw = importlib.util.find_spec("matplotlib") is not None
    if can_draw:
        draw(points, title, folder / "simulation.png")
    else:
        print(
            "no picture: matplotlib is not installed: pip install 'hvd-sparse[plot]'",
            file=sys.stderr,
        )
    (folder / "simulation.md").write_text(
        page(points, title, has_picture=can_draw), encoding="utf-8"
    )
    written = ["simulation.json", "simulation.md", *(["simulation.png"] if can_draw else [])]
    print(f"{', '.join(written[:-1])} and {written[-1]} are in {folder}")


def networks_of(
    options: argparse.Namespace, measured: MeasuredNetwork | None
) -> dict[str, Network | MeasuredNetwork]:
    """Return the networks to simulate, by name.

    They are the measured one, if there is one, and one of every bandwidth that is asked for, flat
    and with several ranks a node.
    """
    found: dict[str, Network | MeasuredNetwork] = {}
    if measured is not None:
        ranks = f" on {measured.world_size} ranks" if measured.world_size else ""
        found[f"as measured{ranks}"] = replace(measured, hops=options.hops)
    latency_s = _settings.LATENCY_S if options.latency is None else options.latency
    for bits in options.bandwidth or ([] if found else BANDWIDTHS_BIT_S):
        for per_node in dict.fromkeys((1, options.ranks_per_node)):
            kind = "flat" if per_node == 1 else f"{per_node} ranks a node"
            found[f"{bits / 1e9:g} Gbit/s, {kind}"] = Network(
                bits, latency_s, per_node, hops=options.hops
            )
    return found


def tables(points: list[Point]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return by network the headings and rows of a table.

    A row has the milliseconds of a step and the scaling efficiency on one number of ranks.
    """
    found = {}
    for network in dict.fromkeys(point.network for point in points):
        here = [point for point in points if point.network == network]
        methods = list(dict.fromkeys(point.method for point in here))
        rows = []
        for ranks in dict.fromkeys(point.ranks for point in here):
            by_method = {point.method: point for point in here if point.ranks == ranks}
            rows.append([f"{ranks:,}", *(_cell(by_method.get(method)) for method in methods)])
        found[network] = (["ranks", *methods], rows)
    return found


def _cell(point: Point | None) -> str:
    if point is None:
        return ""
    mark = "=" if point.prediction.goes_dense else ""
    return f"{mark}{1e3 * point.prediction.step_s:,.0f} ({100 * point.efficiency:.0f} %)"


def draw(points: list[Point], title: str, path: Path) -> None:
    """Draw the scaling efficiency over the number of ranks, with a panel for each network."""
    importlib.import_module("matplotlib").use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    networks = list(dict.fromkeys(point.network for point in points))
    figure, panels = plt.subplots(
        1,
        len(networks),
        figsize=(4.2 * len(networks), 4.2),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, network in zip(panels[0], networks):
        here = [point for point in points if point.network == network]
        for method in dict.fromkeys(point.method for point in points):
            line = [(point.ranks, point.efficiency) for point in here if point.method == method]
            if line:
                style = "--" if method in ("dense", "fp16") else "-"
                panel.plot(
                    *zip(*line),
                    style,
                    marker="o",
                    markersize=3,
                    color=COLOURS.get(method),
                    label=method,
                )
        panel.set(xscale="log", ylim=(0, 1.02), xlabel="ranks", title=network)
        ticks = sorted({point.ranks for point in here})
        panel.set_xticks(
            ticks[:: max(1, len(ticks) // 6)], [str(n) for n in ticks[:: max(1, len(ticks) // 6)]]
        )
        panel.minorticks_off()
    panels[0][0].set_ylabel("scaling efficiency")
    panels[0][-1].legend(frameon=False, fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def page(points: list[Point], title: str, *, has_picture: bool = True) -> str:
    """Return the page in Markdown."""
    lines = [
        f"# Simulated steps: {title}",
        "",
        "`hvd-sparse simulate` makes this page: nothing is sent, all times are the model's "
        "([planning](../planning.md)).",
        "Milliseconds a step, and what is left of a rank's own computing in brackets. Every "
        "method has its best plan; where",
        "the compressor goes dense by itself, `=` says so.",
    ]
    if has_picture:
        lines += ["", "![Scaling efficiency](simulation.png)"]
    for network, (heads, rows) in tables(points).items():
        rule = ["---:"] * len(heads)
        lines += [
            "",
            f"## {network}",
            "",
            *("| " + " | ".join(row) + " |" for row in [heads, rule, *rows]),
        ]
    return "\n".join(lines) + "\n"
