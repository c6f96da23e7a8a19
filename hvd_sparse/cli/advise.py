"""The command ``hvd-sparse advise``: says whether to compress a model on a network, and how.

The network is described by options, or measured on the ranks that the command is launched on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hvd_sparse.autotune.costmodel.advice import CODEC_IDS, DENSITIES, Advice, advise
from hvd_sparse.autotune.costmodel.costs import MeasuredWire
from hvd_sparse.autotune.costmodel.hiding import Hiding, hide
from hvd_sparse.autotune.costmodel.network import Network, Setting
from hvd_sparse.autotune.costmodel.predict import Prediction
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.measured_costs import MeasuredCosts
from hvd_sparse.cli import _assumptions, _settings
from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli._cost_probe import launched_ranks, measure
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.density_text import known_density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.table import table

ROWS = 8
"""Candidates that the table shows; JSON has all."""
WORDS = ("", "codec", "exchange", "layer", "measured", "quartiles")
"""Headings of columns that hold words."""
BANDWIDTH_BIT_S = 1e9
"""Bandwidth of a network that no option describes."""
DESCRIPTIONS = ("world_size", "bandwidth", "latency", "ranks_per_node", "costs")
"""Options that are refused beside a measurement."""


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser(
        "advise",
        help="say whether compression will help, and how to compress",
        description="Offline by what it is told; under horovodrun or mpirun it measures the ranks "
        "that it is launched on.",
    )
    _settings.add_options(parser, model_required=False)
    parser.add_argument("--world-size", type=int, metavar="N", help="number of ranks")
    parser.add_argument("--bandwidth", type=_settings.bandwidth, help="of a node's link (1Gbit)")
    parser.add_argument("--latency", type=_settings.duration, help="between nodes (50us)")
    parser.add_argument("--ranks-per-node", type=int, metavar="L", help="consecutive ranks (1)")
    parser.add_argument(
        "--measure", action="store_true", help="the ranks that this is launched on, as by default"
    )
    parser.add_argument(
        "--density",
        type=known_density,
        nargs="+",
        default=DENSITIES,
        help="that training stands, as a number or NAME=DENSITY,... (0.001 0.01)",
    )
    parser.add_argument("--codec", nargs="+", default=CODEC_IDS, help="ids (index_value block16)")
    parser.add_argument(
        "--exchange", nargs="+", help="ids; by default all that assume nothing about gradients"
    )
    parser.add_argument(
        "--hiding",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="also the density of every layer, between these, whose message hides behind the rest "
        "of the backward pass",
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure few and small ones, to see that it works"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="also write what was measured, for --costs"
    )
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sub-command; return its exit code."""
    if options.measure or launched_ranks() > 1:
        return _run_measured(options)
    if options.save is not None:
        raise InvalidOption(
            "--save keeps what is measured, and nothing is: launch it, as horovodrun -np N does"
        )
    if options.quick:
        raise InvalidOption(
            "--quick is of measuring, and nothing is measured: launch it, as horovodrun -np N does"
        )
    for name in ("model", "world_size"):
        if getattr(options, name) is None:
            raise InvalidOption(
                f"--{name.replace('_', '-')} is missing: name it, or measure, under horovodrun -np "
                "N"
            )
    profile = _settings.profile_of(options)
    setting = _described(options)
    assumed = _assumptions.of_model(options, profile) + _assumptions.of_work(setting.work)
    assumed += _assumptions.of_networks(options, [setting.wire])
    _tell(options, profile, setting, None, assumed)
    return 0


def _run_measured(options: argparse.Namespace) -> int:
    """Measure on all ranks, and print the advice on rank 0."""
    given = [name for name in DESCRIPTIONS if getattr(options, name) is not None]
    if given:
        raise InvalidOption(
            f"--{given[0].replace('_', '-')} describes what is measured on the ranks that this is "
            "launched on: leave it out, or "
            "do not launch it"
        )
    profile = _settings.profile_of(options) if options.model is not None else None
    measured, placement = measure(options.method, quick=options.quick)
    if placement.rank != 0:
        return 0
    if options.save is not None:
        options.save.write_text(json.dumps(measured.to_dict(), indent=1) + "\n", encoding="utf-8")
    assumed = [] if profile is None else _assumptions.of_model(options, profile)
    _tell(
        options,
        profile,
        Setting(placement, MeasuredWire(measured.lines), measured.work),
        measured,
        assumed,
    )
    return 0


def _described(options: argparse.Namespace) -> Setting:
    work, measured = _settings.costs_of(options)
    per_node = 1 if options.ranks_per_node is None else options.ranks_per_node
    network = Network(
        options.bandwidth or BANDWIDTH_BIT_S, _or(options.latency, _settings.LATENCY_S), per_node
    )
    if measured is None:
        return Setting.on(network, options.world_size, work)
    return Setting(in_nodes_of(per_node, 0, options.world_size), measured, work)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _tell(
    options: argparse.Namespace,
    profile: Profile | None,
    setting: Setting,
    measured: MeasuredCosts | None,
    assumed: list[str],
) -> None:
    """Print the measured costs, and the advice for the model, if there is one."""
    placement = setting.placement
    if options.ranks_per_node is None and 1 < placement.world_size == placement.node_count:
        assumed = [*assumed, "every rank has a node of its own (--ranks-per-node)"]
    said: dict[str, object] = {}
    advice = hiding = None
    if profile is not None:
        advice = advise(
            profile,
            setting,
            method=options.method,
            densities=options.density,
            codecs=options.codec,
            exchange_ids=options.exchange,
        )
        said |= {**advice.to_dict(), "assumed": assumed}
        if options.hiding is not None:
            hiding = hide(
                profile, setting, *options.hiding, method=options.method, codec=options.codec[0]
            )
            said["hiding"] = hiding.to_dict()
    if measured is not None:
        said["measured"] = measured.to_dict()
        if profile is None:
            said = measured.to_dict()
    if options.json:
        print(json.dumps(said, indent=1))
        return
    if measured is not None:
        _print_measured(measured)
    if advice is not None:
        _print(advice)
        print(_assumptions.in_lines(assumed))
    if hiding is not None:
        _print_hiding(hiding)


def _print(advice: Advice) -> None:
    rows = [
        [name, "", "", "", *_cells(step)]
        for name, step in (("dense", advice.dense), ("fp16", advice.fp16))
    ]
    for each in advice.candidates[:ROWS]:
        mark = (
            "advised"
            if each == advice.chosen
            else "goes dense"
            if each.prediction.goes_dense
            else ""
        )
        rows.append(
            [mark, f"{each.density:g}", each.codec, each.exchange, *_cells(each.prediction)]
        )
    headings = (
        "",
        "density",
        "codec",
        "exchange",
        "messages",
        "ms a step",
        "ms waiting",
        "ms computing",
    )
    print(table(headings, rows, WORDS))
    strategies = ", ".join(
        f"{name} {1e3 * step_s:.1f}" for name, step_s in advice.strategies.items()
    )
    print(f"ms a step by plan: {strategies}")
    sizes = " + ".join(str(len(group)) for group in advice.groups)
    print(f"layers that travel together, first ready first: {sizes}")
    print(advice.sentence)


def _print_measured(measured: MeasuredCosts) -> None:
    rows = []
    for each in measured.samples:
        low, median, high = (f"{1e3 * seconds:.3g}" for seconds in each.quartiles_s)
        row = [
            each.what,
            f"{each.size:,.0f}",
            "" if each.density is None else f"{each.density:g}",
            str(len(each.seconds)),
            median,
            f"{low} to {high}",
        ]
        rows.append(row)
    print(table(("measured", "size", "density", "rounds", "ms", "quartiles"), rows, WORDS))
    for kind, line in measured.lines.items():
        rate = f"{8e-9 / line.byte_s:.3g} Gbit/s" if line.byte_s else "no time a byte"
        print(
            f"{kind} on {measured.world_size} ranks: {1e3 * line.start_s:.3g} ms, and {rate} "
            "received"
        )
    work = measured.work
    print(f"cores of a rank while all {measured.world_size} work: {measured.cores:.2g}")
    print(
        f"selecting: {1e6 * work.call_s:.3g} us, {1e9 * work.entry_s:.3g} ns an entry and "
        f"{1e9 * work.sent_s:.3g} ns one that "
        f"is sent; making dense: {1e9 * work.dense_s:.3g} ns an entry and "
        f"{1e9 * work.received_s:.3g} ns one that arrived"
    )


def _print_hiding(hiding: Hiding) -> None:
    each = zip(hiding.layers, hiding.groups, hiding.densities)
    rows = [
        [layer.name, f"{layer.numel:,}", str(group + 1), f"{density:.4g}"]
        for layer, group, density in each
    ]
    print(table(("layer", "entries", "message", "density"), rows, WORDS))
    print(
        f"With these densities a step takes {1e3 * hiding.step_s:,.1f} ms, with {hiding.low:g} "
        "everywhere "
        f"{1e3 * hiding.low_step_s:,.1f} ms; {hiding.share:.3%} of the entries are sent instead of "
        f"{hiding.low_share:.3%}."
    )


def _cells(prediction: Prediction) -> list[str]:
    times = (prediction.step_s, prediction.waiting_s, prediction.compute_s + prediction.settle_s)
    return [str(len(prediction.plan)), *(f"{1e3 * seconds:,.1f}" for seconds in times)]
