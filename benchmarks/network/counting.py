"""Bytes that exchanges move between real hosts, by the counters of the hosts' interfaces, beside
the formulas.

``LocalWorld`` counts what passes the collectives (``scripts/bench exchanges``).  Here MPI or
Gloo carries them over TCP, with everything that Horovod, TCP and IP add: the least of it, a step's
negotiation and its carrier, is measured by steps that send next to nothing, and given beside.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._limited import run_limited
from benchmarks.network.cluster import Cluster
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.registry import EXCHANGES

NUMEL = 1_000_000
DENSITIES = (0.001, 0.01)
ENTRY_BYTES = 8.0
LIMIT_S = 600
FLAT = ("allgather", "shared_index", "gtopk", "oktopk")
LAYOUTS = ((2, 1, FLAT), (3, 1, FLAT), (4, 1, FLAT), (2, 2, ("hierarchical",)))
"""Hosts, ranks on each, and the exchanges tried there."""


@dataclass(frozen=True)
class Count:
    """One exchange.

    Attributes
    ----------
    received, most : kilobytes a host's interface receives in a step: mean over the hosts, and of
        the one that receives most
    empty : the same mean for steps of one entry a rank: what does not depend on the entries
    formula : ``Exchange.inbound`` times the entries, in kilobytes: of the one that receives most
    """

    exchange: str
    hosts: int
    ranks_on_each: int
    density: float
    received: float
    most: float
    empty: float
    formula: float

    @property
    def over_formula(self) -> float:
        """Return the bytes of the entries for the host that receives most, over the formula's."""
        return (self.most - self.empty) / self.formula


def run(
    options: argparse.Namespace,
    launcher: Callable[[Cluster, str, int], list[str]],
    settings: dict[str, str],
) -> list[Count]:
    """Count on clusters of 2 to 4 hosts, one after the other, inside this process's namespaces."""
    Cluster(options.hosts).lay()
    counts = []
    for hosts, ranks, exchanges in LAYOUTS:
        if hosts > options.hosts:
            continue
        launch = launcher(Cluster(hosts), options.controller, ranks)
        rows = _on(Cluster(hosts), launch, [str(options.steps), str(ranks), *exchanges], settings)
        counts += list(_counts(rows, hosts, ranks))
        print(f"{hosts} hosts of {ranks}: {len(rows)} rows", flush=True)
    return counts


def _on(
    cluster: Cluster, launch: list[str], arguments: Sequence[str], settings: dict[str, str]
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-network-") as folder:
        output = Path(folder) / "rank0.json"
        worker = [
            sys.executable,
            "-m",
            "benchmarks.network.counting_worker",
            str(output),
            *arguments,
        ]
        environment = {**os.environ, **cluster.environment(), **settings, "PYTHONPATH": os.getcwd()}
        code, printed = run_limited(
            cluster.on(cluster.hosts[0], [*launch, *worker]), environment, LIMIT_S
        )
        if code != 0 or not output.exists():
            raise RuntimeError(f"the ranks ended with {code}:\n{printed[-4000:]}")
        rows: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))
        return rows


def _counts(rows: list[dict[str, Any]], hosts: int, ranks: int) -> list[Count]:
    placement = in_nodes_of(ranks, 0, hosts * ranks)
    empty = {row["exchange"]: row["received"] for row in rows if row["density"] == 0}
    return [
        Count(
            exchange=row["exchange"],
            hosts=hosts,
            ranks_on_each=ranks,
            density=row["density"],
            received=row["received"] / 1e3,
            most=row["most"] / 1e3,
            empty=empty[row["exchange"]] / 1e3,
            formula=EXCHANGES.create(row["exchange"]).inbound(
                row["density"], ENTRY_BYTES, placement
            )
            * NUMEL
            / 1e3,
        )
        for row in rows
        if row["density"]
    ]


def write(counts: list[Count], made_with: dict[str, Any], output: Path) -> None:
    """OUTPUT.json and OUTPUT.md; the table is printed too."""
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "made_with": made_with,
        "counts": [{**asdict(c), "over_formula": c.over_formula} for c in counts],
    }
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    heads = [
        "exchange",
        "hosts x ranks",
        "density",
        "received kB",
        "most kB",
        "empty step kB",
        "formula kB",
        "(most - empty) / formula",
    ]
    table = Table(*heads)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for c in counts:
        cells = [
            c.exchange,
            f"{c.hosts} x {c.ranks_on_each}",
            f"{c.density:g}",
            f"{c.received:.1f}",
            f"{c.most:.1f}",
        ]
        cells += [f"{c.empty:.1f}", f"{c.formula:.1f}", f"{c.over_formula:.2f}"]
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    Console(width=140).print(table)
    made = ", ".join(f"{key} {value}" for key, value in made_with.items())
    words = (
        "# Bytes by exchange, on the wire\n\n"
        "`scripts/bench-network --exchanges` makes this page: hosts are network namespaces, each "
        "exchange runs through\n"
        "Horovod's own optimizer for PyTorch, and what a host's interface receives between two "
        "barriers is read from its\n"
        "counters: with Horovod's negotiation, the carrier, TCP, IP and acknowledgements. *Empty* "
        "steps send one entry a\n"
        f"rank. *formula* is `Exchange.inbound` for {ENTRY_BYTES:g} bytes an entry, of the host "
        "that receives most; one\n"
        f"tensor of {NUMEL:,} entries.\n"
        "What `LocalWorld` counts is in [exchanges.md](exchanges.md).\n\n"
        f"Made with {made}.\n\n"
    )
    output.with_suffix(".md").write_text(words + "\n".join(lines) + "\n", encoding="utf-8")
