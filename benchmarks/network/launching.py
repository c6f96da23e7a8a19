"""Start the ranks of a measurement on the hosts, and read what rank 0 leaves."""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._limited import run_limited
from benchmarks.network.cluster import INTERFACE, SUBNET, Cluster
from hvd_sparse.density_text import spell_density

RUN_LIMIT_S = 3600


def launcher(cluster: Cluster, controller: str, ranks: int = 1) -> list[str]:
    """Return the command that starts so many ranks on every host."""
    slots, total = ",".join(f"{host}:{ranks}" for host in cluster.hosts), str(ranks * cluster.size)
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
    """Return the settings of every rank, the same for all methods."""
    return {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        # the default of 1,024 is less than the names of several ways in one launch together
        "HOROVOD_CACHE_CAPACITY": "4096",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("HOROVOD_", "HVD_SPARSE_"))
        },
    }


def run_setting(
    cluster: Cluster, options: argparse.Namespace, model: str, compute: str
) -> dict[str, Any]:
    """Run every method on one model, over the wire as it is shaped now."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-network-") as folder:
        output = Path(folder) / "rank0.json"
        module = "worker" if options.frontend == "torch" else f"{options.frontend}_worker"
        worker = [
            sys.executable,
            "-m",
            f"benchmarks.network.{module}",
            "--model",
            model,
            "--compute",
            compute,
        ]
        worker += ["--density", spell_density(options.density)]
        for name in ("backward_ms", "rounds", "steps", "warmup"):
            worker += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        worker += [
            "--output",
            str(output),
            *_measured(options),
        ]
        return launch(cluster, options.controller, worker, output)


def _measured(options: argparse.Namespace) -> list[str]:
    """Return the options of a rank that say what takes turns."""
    if options.plans:
        return ["--plans"]
    return ["--methods", *options.methods]


def launch(cluster: Cluster, controller: str, program: list[str], output: Path) -> dict[str, Any]:
    """Run a program on all hosts; return the JSON that its rank 0 leaves in ``output``."""
    command = cluster.on(cluster.hosts[0], [*launcher(cluster, controller), *program])
    environment = {
        **os.environ,
        **cluster.environment(),
        **rank_settings(),
        "PYTHONPATH": os.getcwd(),
    }
    code, printed = run_limited(command, environment, RUN_LIMIT_S)
    if code != 0 or not output.exists():
        raise RuntimeError(f"the ranks ended with {code}:\n{printed[-4000:]}")
    return json.loads(output.read_text(encoding="utf-8"))


def run_apart(
    cluster: Cluster, options: argparse.Namespace, model: str, compute: str
) -> dict[str, Any]:
    """Run every method in a launch of its own, in every round, each round in another order.

    So no method shares its processes' memory, Horovod's response cache or what the threads have
    learnt with another one.
    """
    rows: list[dict[str, Any]] = []
    reports: dict[str, Any] = {}
    alone = copy.copy(options)
    alone.rounds = 1
    for number in range(options.rounds):
        for method in random.Random(number).sample(options.methods, len(options.methods)):
            alone.methods = [method]
            result = run_setting(cluster, alone, model, compute)
            rows += [{**row, "round": number} for row in result["rows"]]
            reports[method] = result["reports"][method]
    # tables are in the order that was asked for
    rows.sort(key=lambda row: (row["round"], options.methods.index(row["method"])))
    return {"rows": rows, "reports": reports}
