"""Bytes that exchanges really move, counted rank by rank: the work of ``scripts/bench
exchanges``.

N ranks as threads of one process run the steps; ``LocalWorld`` counts what passes each rank's
network, collective by collective, headers included.  Carriers are left out: they are the same for
all exchanges.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.collectives.topology import Placement, in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.exchanges.contract import dense_inbound
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

mpl.use("Agg")
from matplotlib import pyplot as plt

ENTRY_BYTES = 8.0
RANKS = (2, 3, 4, 8, 16, 32, 64)
STEPS = 8
CONTENDERS = {
    "allgather": "allgather",
    "shared_index": "shared_index",
    "gtopk": "gtopk",
    "oktopk": "oktopk",
    "hierarchical, 4 ranks a node": {"id": "hierarchical", "ranks_per_node": 4},
}
COLOURS = dict(
    zip([*CONTENDERS, "dense"], ["#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#000000"])
)
NETWORKS = (0.1, 1.0, 10.0, 25.0)
"""Gbit/s."""


@dataclass(frozen=True)
class Line:
    """The counts of one exchange.

    Attributes
    ----------
    sent, received : bytes a rank and step: mean over the ranks; of hierarchical, between nodes
        alone
    most : received by the rank that receives most
    formula : ``Exchange.inbound`` times the entries: into a node
    """

    exchange: str
    ranks: int
    density: float
    numel: int
    sent: float
    received: float
    most: float
    formula: float
    applied: float


def run(options: argparse.Namespace) -> int:
    """Count, print the table, write JSON, picture and page."""
    numel, ranks, densities = (
        (20_000, RANKS[:3], (0.01,)) if options.quick else (200_000, RANKS, (0.001, 0.01))
    )
    cases = list(itertools.product(densities, ranks, CONTENDERS))
    lines = [
        line for case in track(cases, "counting", transient=True) for line in measure(*case, numel)
    ]
    chosen = list(choices())
    options.output.mkdir(parents=True, exist_ok=True)
    document = {
        "entry_bytes": ENTRY_BYTES,
        "lines": [asdict(line) for line in lines],
        "auto": chosen,
    }
    (options.output / "exchanges.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(lines, options.output / "exchanges.png")
    (options.output / "exchanges.md").write_text(page(lines, chosen))
    Console(width=130).print(table_of(lines))
    print(f"exchanges.json, exchanges.png and exchanges.md are in {options.output}")
    return 0


@lru_cache(maxsize=1024)
def gradient(numel: int, rank: int, step: int) -> np.ndarray:
    """Heavy-tailed, with a part that all ranks share: as mini-batches of one loss give them."""
    shared = np.random.default_rng([step, numel]).laplace(size=numel)
    return (shared + np.random.default_rng([step, numel, rank + 1]).laplace(size=numel)).astype(
        np.float32
    )


def measure(density: float, ranks: int, name: str, numel: int) -> Iterator[Line]:
    """Take some steps by one exchange; none where there are too few ranks for two nodes."""
    described: Any = CONTENDERS[name]
    exchange = EXCHANGES.resolve(described)
    placement = exchange.placement(0, ranks, None) or in_nodes_of(1, 0, ranks)
    if placement.node_count < 2:
        return
    spec = TensorSpec("t", (numel, 1), "float32")
    configuration = Configuration.create(
        selector={"id": "topk", "density": density},
        exchange=described,
        allow_dense=False,
        min_numel=1,
    )

    def script(collective: Any) -> float:
        session = Session(configuration, [spec], collective, average=False)
        counts = [
            np.count_nonzero(
                session.reduce({"t": gradient(numel, collective.rank, step).reshape(-1, 1)})["t"]
            )
            for step in range(STEPS)
        ]
        return float(np.mean(counts))

    world = LocalWorld(ranks, timeout_s=1200.0)
    applied = world.run(script)[0]
    sent, received = (
        _by_rank(counted, exchange) for counted in (world.wire_sent, world.wire_received)
    )
    formula = exchange.inbound(density, ENTRY_BYTES, placement) * numel
    mean_sent, mean_received = (float(np.mean(each)) / STEPS for each in (sent, received))
    yield Line(
        name,
        ranks,
        density,
        numel,
        mean_sent,
        mean_received,
        max(received) / STEPS,
        formula,
        applied / numel,
    )


def _by_rank(counted: Any, exchange: Any) -> list[int]:
    """Bytes of the exchange's own collectives; of those that stay inside a node, none."""
    inside = ("alltoall.",) if exchange.sums_first else ()
    return [
        sum(
            nbytes
            for name, nbytes in by_name.items()
            if ".hvd_sparse." in name
            and ".handshake." not in name
            and not name.startswith(inside or ("-",))
        )
        for by_name in counted
    ]


def choices() -> Iterator[dict[str, Any]]:
    """Return the choice of ``auto``, and whether dense is no slower, for 25 million entries in 60
    buckets on every network."""
    numel, buckets = 25_000_000, 60
    for gbit, ranks, density, local in itertools.product(
        NETWORKS, (4, 16, 64, 256), (0.001, 0.01, 0.1), (1, 4)
    ):
        auto = EXCHANGES.create("auto", bandwidth_gbit=gbit, ranks_per_node=local)
        configuration = Configuration.create(
            selector={"id": "topk", "density": density}, exchange=auto
        )
        placement: Placement = auto.placement(0, ranks, None)
        if placement.node_count < 2:
            continue
        candidates = configuration.exchanges(placement)
        volume = configuration.step_volume(numel, buckets)
        costs = {
            exchange.id: ms for exchange, ms in auto.costs(candidates, volume, placement).items()
        }
        dense = buckets * auto.latency_ms + 8 * dense_inbound(placement) * numel / (gbit * 1e6)
        taken = auto.resolve(candidates, volume, placement).id
        yield {
            "gbit": gbit,
            "ranks": ranks,
            "ranks_per_node": local,
            "density": density,
            "auto": taken,
            "ms": costs,
            "dense_ms": dense,
            "quickest": "dense" if dense <= costs[taken] else taken,
        }


def table_of(lines: list[Line]) -> Table:
    """One row an exchange and number of ranks."""
    table = Table(title="kB a rank and step; mean over the ranks")
    for heading in (
        "exchange",
        "ranks",
        "density",
        "sent",
        "received",
        "most",
        "formula",
        "received/formula",
        "applied",
    ):
        table.add_column(heading, justify="left" if heading == "exchange" else "right")
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: Line) -> list[str]:
    kilobytes = [
        f"{value / 1e3:,.1f}" for value in (line.sent, line.received, line.most, line.formula)
    ]
    ratio = f"{line.most / line.formula:.2f}"
    return [
        line.exchange,
        str(line.ranks),
        f"{line.density:g}",
        *kilobytes,
        ratio,
        f"{line.applied:.5f}",
    ]


def draw(lines: list[Line], path: Any) -> None:
    """Received bytes over ranks, one panel a density, with the dense ring."""
    densities = sorted({line.density for line in lines})
    figure, panels = plt.subplots(
        1, len(densities), figsize=(6 * len(densities), 4.5), squeeze=False
    )
    for panel, density in zip(panels[0], densities):
        here = [line for line in lines if line.density == density]
        for name in CONTENDERS:
            points = [
                (line.ranks, line.most, line.formula) for line in here if line.exchange == name
            ]
            if points:
                ranks, most, formula = zip(*points)
                panel.plot(ranks, most, "o", color=COLOURS[name], label=name)
                panel.plot(ranks, formula, "-", color=COLOURS[name], linewidth=1)
        sizes = sorted({line.ranks for line in here})
        dense = [dense_inbound(in_nodes_of(1, 0, size)) * here[0].numel for size in sizes]
        panel.plot(sizes, dense, "--", color=COLOURS["dense"], label="dense ring")
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="ranks",
            title=f"density {density:g}, {here[0].numel:,} entries",
        )
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set_ylabel("bytes received a step, busiest rank")
    panels[0][0].legend(frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)


def page(lines: list[Line], chosen: list[dict[str, Any]]) -> str:
    """Markdown."""
    heads = (
        "exchange",
        "ranks",
        "density",
        "sent kB",
        "received kB",
        "most kB",
        "formula kB",
        "most/formula",
        "applied",
    )
    rows = [_cells(line) for line in lines]
    auto = [
        [
            str(c["gbit"]),
            str(c["ranks"]),
            str(c["ranks_per_node"]),
            f"{c['density']:g}",
            c["auto"],
            c["quickest"],
            f"{c['ms'][c['auto']]:,.0f}",
            f"{c['dense_ms']:,.0f}",
        ]
        for c in chosen
    ]
    return "\n".join(
        [
            "# Bytes by exchange",
            "",
            "`scripts/bench exchanges` makes this page. Ranks are threads; every byte that "
            "passes a rank's network in the",
            "exchange's collectives is counted, headers and checksums included "
            "(`LocalWorld.wire_received`): allgather and",
            "allreduce as rings, alltoall straight. Top-k, 8 bytes an entry, eight steps from a "
            "cold start. Gradients are",
            "Laplace noise, half of it shared by all ranks. *formula* is `Exchange.inbound`, "
            "which `auto` and `allow_dense`",
            "decide by; of `hierarchical` only what passes between nodes is counted. *applied* is "
            "the part of the entries",
            "that the optimizer is given.",
            "",
            "![bytes received](exchanges.png)",
            "",
            *_markdown(heads, rows),
            "",
            "## What `auto` takes",
            "",
            "Modelled, for 25 million entries in 60 buckets at 1 ms a collective; dense by a "
            "ring. `allow_dense` then decides",
            "by bytes alone.",
            "",
            *_markdown(
                ("Gbit/s", "ranks", "a node", "density", "auto", "quickest", "auto ms", "dense ms"),
                auto,
            ),
            "",
        ]
    )


def _markdown(heads: Any, rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("---" for _ in heads) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]
