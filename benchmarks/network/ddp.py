"""Steps under DistributedDataParallel on shaped hosts: our hook beside PyTorch's own.

Started by ``scripts/bench-network --ddp``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._streams import markdown_table
from benchmarks.network.cluster import INTERFACE, MARK, SUBNET, Cluster, inside

METHODS = ("dense", "fp16", "powersgd1", "powersgd2", "powersgd4", "ldte_bs", "ldte_bs+block16")
PORT = "29533"
LIMIT_S = 900
ROOT = Path(__file__).resolve().parent.parent.parent

INTRODUCTION = """\
# DistributedDataParallel, over a real wire

`scripts/bench-network --ddp` makes this page: steps of DistributedDataParallel over Gloo, without a
hook, with PyTorch's own `fp16_compress_hook` and `powerSGD_hook` (of rank 1, 2 and 4), and with
`hvd_sparse.ddp.register`. Gradients are given (drawn from recorded ones) and nothing is computed,
so a step is what DDP and its hook make of them, and nothing hides it. "Step" is the median of the
slowest rank's, with the least and the most; "received" are the bytes of a host's interface in a
step, headers included. The hosts are network namespaces of one machine and share its cores, which
real hosts do not. None of it tells of accuracy: PowerSGD of a rank and a density are different
compromises.
"""


def launch(cluster: Cluster, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a rank on every host; what rank 0 wrote."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-") as folder:
        output = Path(folder) / "rows.json"
        worker = [sys.executable, "-m", "benchmarks.network.ddp_worker", "--output", str(output)]
        worker += ["--model", options.model, "--density", str(options.density)]
        worker += ["--rounds", str(options.rounds), "--steps", str(options.steps)]
        worker += ["--methods", *options.methods]
        running = []
        for rank, host in enumerate(cluster.hosts):
            told = {"RANK": rank, "WORLD_SIZE": cluster.size, "OMP_NUM_THREADS": 1}
            told |= {"MASTER_ADDR": f"{SUBNET}.1", "MASTER_PORT": PORT}
            told |= {"GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONPATH": ROOT}
            setting = [f"{name}={value}" for name, value in told.items()]
            running.append(subprocess.Popen(cluster.on(host, ["env", *setting, *worker])))
        try:
            codes = [process.wait(LIMIT_S) for process in running]
        finally:
            for process in running:
                process.kill()
        if any(codes):
            raise RuntimeError(f"ranks ended with exit codes {codes}")
        rows: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))
        return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line a method."""
    cells, dense = [], 0.0
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        taken = 1e3 * np.array([second for row in own for second in row["seconds"]])
        median = float(np.median(taken))
        dense = dense or median
        spread = f"{median:.0f} ({taken.min():.0f} to {taken.max():.0f})"
        received = np.median([row["received"] for row in own]) / 1e6
        cells.append([f"`{method}`", spread, f"{dense / median:.2f}", f"{received:.2f}"])
    return markdown_table(["hook", "step, ms", "times dense", "received, MB"], cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "ddp.md")
    options = parser.parse_args()
    if os.environ.get(MARK) != "1":
        command = inside([sys.executable, "-m", "benchmarks.network.ddp", *sys.argv[1:]])
        return subprocess.run(command, check=False).returncode
    cluster = Cluster(options.hosts)
    cluster.lay()
    cluster.shape(options.rate)
    rows = launch(cluster, options)
    where = f"{options.hosts} hosts, {options.rate}, {options.model}, density {options.density}"
    told = f"{where}; torch {torch.__version__}, load {os.getloadavg()[1]:.1f} behind the run."
    options.output.write_text(f"{INTRODUCTION}\n{told}\n\n{table(rows)}\n", encoding="utf-8")
    options.output.with_suffix(".json").write_text(json.dumps(rows), encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
