"""Starts the ranks of a measurement on the hosts, and reads the file that rank 0 writes."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._limited import run_limited
from benchmarks.network.cluster import INTERFACE, SUBNET, Cluster
from examples.spelling import density_argument

POOL = 1 << 22
"""Random entries from which gradients are filled, with another offset at every step."""
LIMIT_S = 3600
"""Time limit of a launch that measures steps."""
WORKERS = {"torch": "worker", "tensorflow": "tensorflow_worker", "ddp": "ddp_worker"}


def launcher(cluster: Cluster, controller: str) -> list[str]:
    slots, total = ",".join(f"{host}:1" for host in cluster.hosts), str(cluster.size)
    if controller == "gloo":
        wire = ["--network-interfaces", INTERFACE]
        return ["horovodrun", "--gloo", "-np", total, "-H", slots, *wire]
    settings = {
        "plm_rsh_agent": "ssh",
        "btl": "self,tcp",
        "btl_tcp_if_include": f"{SUBNET}.0/24",
        "oob_tcp_if_include": f"{SUBNET}.0/24",
        "mpi_yield_when_idle": "1",
    }
    arguments = [part for name, value in settings.items() for part in ("--mca", name, value)]
    passed = [part for name in ("PATH", "PYTHONPATH", *rank_settings()) for part in ("-x", name)]
    return ["mpirun", "-np", total, "-H", slots, "--bind-to", "none", *arguments, *passed]


def rank_settings() -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("HOROVOD_", "HVD_SPARSE_"))
        },
    }


def launch(
    cluster: Cluster, controller: str, module: str, arguments: list[str], limit_s: float = LIMIT_S
) -> Any:
    """Run a module on all hosts. Its last argument is a file, to which rank 0 writes JSON; return
    its content. Raises RuntimeError if the ranks fail."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-network-") as folder:
        output = Path(folder) / "rank0.json"
        program = [sys.executable, "-m", f"benchmarks.network.{module}", *arguments, str(output)]
        command = cluster.on(cluster.hosts[0], [*launcher(cluster, controller), *program])
        environment = {
            **os.environ,
            **cluster.environment(),
            **rank_settings(),
            "PYTHONPATH": os.getcwd(),
        }
        code, printed = run_limited(command, environment, limit_s)
        if code != 0 or not output.exists():
            raise RuntimeError(f"the ranks ended with {code}:\n{printed[-4000:]}")
        return json.loads(output.read_text(encoding="utf-8"))


def run_apart(
    cluster: Cluster, options: argparse.Namespace, model: str, compute: str
) -> dict[str, Any]:
    """Run every method in its own launch in each round, in an order that changes each time."""
    rows: list[dict[str, Any]] = []
    reports: dict[str, Any] = {}
    arguments = ["--model", model, "--compute", compute]
    arguments += ["--density", str(options.density)]
    for name in ("backward_ms", "steps", "warmup"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    # DDP's ranks meet by Gloo, and are only started by mpirun
    controller = "mpi" if options.frontend == "ddp" else options.controller
    for number in range(options.rounds):
        for method in random.Random(number).sample(options.methods, len(options.methods)):
            module = WORKERS[options.frontend]
            result = launch(cluster, controller, module, [*arguments, "--method", method])
            rows += [{"method": method, "round": number, **row} for row in result["rows"]]
            reports[method] = result["report"]
    # tables are in the order that was asked for
    rows.sort(key=lambda row: (row["round"], options.methods.index(row["method"])))
    return {"rows": rows, "reports": reports}


def rank_options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    for name in ("--model", "--method", "--compute"):
        parser.add_argument(name)
    parser.add_argument("--density", type=density_argument)
    parser.add_argument("--backward-ms", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("output", type=Path)
    return parser.parse_args()
