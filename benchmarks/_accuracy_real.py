"""Real ranks of ``scripts/bench accuracy``: the same training by Horovod, on this machine."""

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


class Stopwatch:
    """Seconds of training, without what is spent on scoring.

    Attributes
    ----------
    laps : the seconds so far, at every stop
    """

    def __init__(self) -> None:
        self.laps: list[float] = []
        self._passed = 0.0
        self._began: float | None = None

    @property
    def is_running(self) -> bool:
        return self._began is not None

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self) -> None:
        assert self._began is not None
        self._passed += time.perf_counter() - self._began
        self._began = None
        self.laps.append(round(self._passed, 3))


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
    built_in = {"dense": hvd.Compression.none, "fp16": hvd.Compression.fp16}
    compression: Any = built_in.get(line.method)
    if compression is None:
        compression = read_method(line.method).create(
            Compression, network.named_parameters(), **options_of(line, optimizer)
        )
    wrapped = hvd.DistributedOptimizer(
        optimizer, named_parameters=network.named_parameters(), compression=compression
    )
    each, watch = line.batch // line.workers, Stopwatch()

    def reduced(chosen: torch.Tensor) -> float:
        if not watch.is_running:
            hvd.barrier()
            watch.start()
        wrapped.zero_grad()
        loss = data.loss(network, chosen.split(each)[hvd.rank()])
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    result = train(run, data, network, wrapped, reduced, watch.stop)
    halves = 2 if line.method == "fp16" else 1
    sent = {"density": None, "bytes": dense_bytes(network) // halves}
    if line.method not in built_in:
        sent = sent_of(compression.stats(), line)
    if len(set(hvd.allgather_object(digest_of(network)))) != 1:
        raise AssertionError(f"{run.key}: the ranks have different parameters")
    if hvd.rank() == 0:
        options.path.write_text(json.dumps({**result, **sent, "seconds_at": watch.laps}))
    hvd.shutdown()


if __name__ == "__main__":
    rank_main()
