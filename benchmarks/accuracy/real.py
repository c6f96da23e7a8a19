"""Real ranks of the accuracy benchmark: the same training under Horovod on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch

from benchmarks._ranks import launch, report
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
    each = launch("benchmarks.accuracy.real", WORKERS, key_of(run), limit_s=TIMEOUT_S)
    return {"score": each[0]}


def rank_main() -> None:
    run, _ = run_of(json.loads(sys.argv[1]))

    import horovod.torch as hvd

    from benchmarks.network.methods import HOROVODS, compression

    hvd.init()
    line = run.line
    training = Training(TASKS[line.task], line.optimizer, run.rate, line.steps, run.seed)
    named = list(training.network.named_parameters())
    name, *told = line.rule.split("/")
    spec, options = (name, {}) if name in HOROVODS else NAMED[name](training, *told)
    made = compression(spec, named, options)
    wrapped = hvd.DistributedOptimizer(training.optimizer, named_parameters=named, compression=made)
    training.optimizer = wrapped  # of the same parameter groups, which the scheduler changes
    ranks = Ranks(training.network, wrapped, hvd.size(), rank=hvd.rank())
    score = training.run(ranks)["score"]
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for _, p in named)).hexdigest()
    if len(set(hvd.allgather_object(digest))) != 1:
        raise AssertionError(f"{run}: the ranks have different parameters")
    report(hvd.rank(), score)
    hvd.shutdown()


if __name__ == "__main__":
    rank_main()
