"""``hvd-sparse advise``: dense, fp16 or compressed, and how, for a model and a network; nothing is sent."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..core.placement import in_nodes_of
from ..planning.advice import CODEC_IDS, DENSITIES, Advice, advise
from ..planning.network import Network, Setting
from . import _settings

ROWS = 8
"""Ways to compress that the table shows; JSON has all."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("advise", help="say whether compression will help, and how to compress")
    _settings.add_options(parser)
    parser.add_argument("--world-size", type=int, required=True, metavar="N", help="number of ranks")
    parser.add_argument("--bandwidth", type=_settings.bandwidth, default=1e9, help="of a node's link (1Gbit)")
    parser.add_argument("--latency", type=_settings.duration, default=50e-6, help="between nodes (50us)")
    parser.add_argument("--ranks-per-node", type=int, default=1, metavar="L", help="consecutive ranks (%(default)s)")
    parser.add_argument("--density", type=float, nargs="+", default=DENSITIES, help="that training stands (0.001 0.01)")
    parser.add_argument("--codec", nargs="+", default=CODEC_IDS, help="ids (index_value block16)")
    parser.add_argument("--exchange", nargs="+", help="ids; by default all that assume nothing about gradients")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    work, measured = _settings.costs_of(options)
    network = Network(options.bandwidth, options.latency, options.ranks_per_node)
    setting = Setting.on(network, options.world_size, work)
    if measured is not None:
        setting = Setting(in_nodes_of(options.ranks_per_node, 0, options.world_size), measured, work)
    advice = advise(
        _settings.profile_of(options),
        setting,
        method=options.method,
        densities=options.density,
        codecs=options.codec,
        exchange_ids=options.exchange,
    )
    if options.json:
        print(json.dumps(advice.to_dict(), indent=1))
    else:
        _print(advice)
    return 0


def _print(advice: Advice) -> None:
    console = _settings.load("rich.console").Console(width=110)
    table = _settings.load("rich.table").Table()
    for heading in ("", "density", "codec", "exchange", "messages", "ms a step", "waiting", "computing"):
        table.add_column(heading, justify="right" if heading in ("density", "messages") or "ing" in heading else "left")
    for name, prediction in (("dense", advice.dense), ("fp16", advice.fp16)):
        table.add_row(name, "", "", "", *_cells(prediction))
    for each in advice.candidates[:ROWS]:
        mark = "advised" if each == advice.chosen else "goes dense" if each.prediction.goes_dense else ""
        table.add_row(mark, f"{each.density:g}", each.codec, each.exchange, *_cells(each.prediction))
    console.print(table)
    strategies = ", ".join(f"{name} {1e3 * step_s:.1f}" for name, step_s in advice.strategies.items())
    console.print(f"ms a step by plan: {strategies}")
    sizes = " + ".join(str(len(group)) for group in advice.groups)
    console.print(f"layers that travel together, first ready first: {sizes}")
    console.print(advice.sentence)


def _cells(prediction: Any) -> list[str]:
    times = (prediction.step_s, prediction.waiting_s, prediction.compute_s + prediction.settle_s)
    return [str(len(prediction.plan)), *(f"{1e3 * seconds:,.1f}" for seconds in times)]
