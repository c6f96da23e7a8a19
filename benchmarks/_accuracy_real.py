"""Real ranks of ``hvd-sparse bench accuracy``: the same training by Horovod, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._accuracy_runs import (
    Line,
    Run,
    dense_bytes,
    digest_of,
    make_optimizer,
    options_of,
    sent_of,
    train,
)
from benchmarks._accuracy_tasks import TASKS

TIMEOUT_S = 3600


def on_real_ranks(run: Run) -> dict[str, Any]:
    """Train by Horovod; return the result of the first rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo"]
        launcher += ["-np", str(run.line.workers)]
        program = [sys.executable, "-m", "benchmarks._accuracy_real", run.key, str(path)]
        root = str(Path(__file__).resolve().parent.parent)
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        began = time.perf_counter()
        done = subprocess.run(
            [*launcher, *program],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode or not path.exists():
            raise RuntimeError(
                f"{run.key}: real ranks ended with "
                f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        result: dict[str, Any] = json.loads(path.read_text())
        return {**result, "seconds": round(time.perf_counter() - began, 1)}


def rank_main() -> None:
    """Be a real rank.  Arguments: the run, and where its result goes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=json.loads)
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    run = Run(Line(**options.run["line"]), options.run["rate"], options.run["seed"])

    import horovod.torch as hvd

    from hvd_sparse.methods.spelling import read_method
    from hvd_sparse.torch import Compression

    hvd.init()
    torch.set_num_threads(1)
    line, task = run.line, TASKS[run.line.task]
    data = task.load()
    torch.manual_seed(run.seed)
    network = task.network()
    optimizer = make_optimizer(line.optimizer, network, run.rate)
    compression: Any = hvd.Compression.none
    if line.method != "dense":
        compression = read_method(line.method).create(
            Compression, network.named_parameters(), **options_of(line, optimizer)
        )
    wrapped = hvd.DistributedOptimizer(
        optimizer, named_parameters=network.named_parameters(), compression=compression
    )
    each = task.batch // line.workers

    def reduced(chosen: torch.Tensor) -> float:
        wrapped.zero_grad()
        loss = data.loss(network, chosen.split(each)[hvd.rank()])
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    result = train(run, data, network, wrapped, reduced)
    sent = {"density": None, "bytes": dense_bytes(network)}
    if line.method != "dense":
        sent = sent_of(compression.stats(), line)
    if len(set(hvd.allgather_object(digest_of(network)))) != 1:
        raise AssertionError(f"{run.key}: the ranks have different parameters")
    if hvd.rank() == 0:
        options.path.write_text(json.dumps({**result, **sent}))
    hvd.shutdown()


if __name__ == "__main__":
    rank_main()
