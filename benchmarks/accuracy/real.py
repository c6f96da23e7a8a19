"""Real ranks of the accuracy benchmark: the same training under Horovod on this machine."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy.rules import Dense, Gradients
from benchmarks.accuracy.store import key_of, run_of
from benchmarks.accuracy.tasks import TASKS, WORKERS
from benchmarks.accuracy.training import NAMED, Run, Training

TIMEOUT_S = 1800


class Ranks(Dense):
    """Reduces this rank's gradients by Horovod's optimizer."""

    def __init__(self, *told: Any, rank: int) -> None:
        super().__init__(*told)
        self._rank = rank

    def step(self, examples: torch.Tensor, gradients: Gradients) -> float:
        self.steps += 1
        _, loss = gradients(examples.chunk(self.workers)[self._rank])
        self.optimizer.step()
        return loss


def on_real_ranks(run: Run) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo"]
        launcher += ["-np", str(WORKERS)]
        program = [sys.executable, "-m", "benchmarks.accuracy.real", key_of(run), str(path)]
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
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
                f"{run}: real ranks ended with {done.returncode}\n"
                f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def rank_main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=json.loads)
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    run, _ = run_of(options.run)

    import horovod.torch as hvd

    from hvd_sparse.methods.spelling import read_method
    from hvd_sparse.torch import Compression

    hvd.init()
    line = run.line
    training = Training(TASKS[line.task], line.optimizer, run.rate, line.steps, run.seed)
    named = list(training.network.named_parameters())
    name, *told = line.rule.split("/")
    compression: Any = {"dense": hvd.Compression.none, "fp16": hvd.Compression.fp16}.get(name)
    if compression is None:
        method, method_options = NAMED[name](training, *told)
        compression = read_method(method).create(Compression, named, **method_options)
    wrapped = hvd.DistributedOptimizer(
        training.optimizer, named_parameters=named, compression=compression
    )
    training.optimizer = wrapped  # of the same parameter groups, which the scheduler changes
    ranks = Ranks(training.network, wrapped, hvd.size(), rank=hvd.rank())
    score = training.run(ranks)["score"]
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for _, p in named)).hexdigest()
    if len(set(hvd.allgather_object(digest))) != 1:
        raise AssertionError(f"{run}: the ranks have different parameters")
    if hvd.rank() == 0:
        options.path.write_text(json.dumps({"score": score}))
    hvd.shutdown()


if __name__ == "__main__":
    rank_main()
