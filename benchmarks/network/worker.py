"""One rank under Horovod in PyTorch: steps of one method. ``benchmarks.network`` starts it."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from benchmarks._gradients import Gradients, fill
from benchmarks.architectures import parameters
from benchmarks.network.cluster import interface_bytes
from benchmarks.network.launching import POOL, rank_options
from benchmarks.network.methods import create, watch
from benchmarks.network.spans import PHASES, Spans
from hvd_sparse.registry import CODECS

SLOW_S = 1.5
"""Seconds. If a step of a method takes longer, only one is measured in each round."""
LONGEST_TRIAL = 60
"""Largest number of steps of the trial of ``auto``."""


class Rank:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.spans, self.steps = options, Spans(), 0
        listed = parameters(options.model)
        # no value of a parameter is ever read: one entry stands for all
        named = [
            (each.name, nn.Parameter(torch.zeros(()).expand(each.shape), requires_grad=True))
            for each in listed
        ]
        self.parameters = [parameter for _, parameter in named]
        is_replayed = options.compute != "none"
        self.ready = [each.ready if is_replayed else 0.0 for each in listed]
        self.work = torch.empty(sum(each.numel for each in listed))
        self.source = Gradients.draw(POOL, seed=hvd.rank()).arrays[0]
        self.method = create(options.method, named, options.density, self.spans)
        watch(self.spans, [CODECS.get(id) for id in CODECS.ids()])

    def step(self) -> dict[str, float]:
        self.steps += 1
        fill(self.work.numpy(), self.source, self.steps)
        pieces = self.work.split([parameter.numel() for parameter in self.parameters])
        views = [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters)]
        hvd.barrier()
        self.spans.clear()
        received = interface_bytes()[0]
        start, used = time.perf_counter(), time.process_time()
        self._replay(views, start)
        self.method.finish()
        total, used = time.perf_counter() - start, time.process_time() - used
        hvd.barrier()
        # As an optimizer does that applies them: gradients that are thrown away are taken back.
        torch.autograd.graph.increment_version(self.parameters)
        phases = {name: self.spans.seconds[name] for name in PHASES}
        phases |= {f"{name}_processor": self.spans.processor[name] for name in PHASES}
        received = interface_bytes()[0] - received
        return {"total": total, "all_threads": used, **phases, "received": received}

    def _replay(self, views: list[torch.Tensor], start: float) -> None:
        done_ms = 0.0
        for position in sorted(range(len(views)), key=lambda i: (self.ready[i], -i)):
            ready_ms = self.ready[position] * self.options.backward_ms
            with self.spans.phase("backward"):
                if self.options.compute == "asleep":
                    # as while a GPU computes: the core is free
                    time.sleep(max(0.0, start + ready_ms / 1e3 - time.perf_counter()))
                elif self.options.compute == "busy":
                    _keep_busy((ready_ms - done_ms) / 1e3)
            done_ms = ready_ms
            self.parameters[position].grad = views[position]
            self.method.submit(position)

    def check_replicas(self) -> None:
        bits = [
            parameter.grad.view(-1).view(torch.int32).sum(dtype=torch.int64)
            for parameter in self.parameters
        ]
        sums = hvd.allgather(torch.stack(bits).sum()[None], name="bench.check").tolist()
        if len(set(sums)) != 1:
            raise AssertionError(f"the averaged gradients differ between ranks: {sums}")


def _keep_busy(seconds: float) -> None:
    """Compute for ``seconds`` of CPU time, however long that takes beside other programs."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _merge(row: dict[str, float]) -> dict[str, float]:
    """Combine all ranks' rows: the slowest rank's step time, and the means of all columns."""
    vector = torch.tensor([[float(value) for value in row.values()]], dtype=torch.float64)
    gathered = hvd.allgather(vector, name="bench.merge").numpy()
    merged = dict(zip(row, gathered.mean(axis=0).tolist()))
    slowest = float(gathered[:, list(row).index("total")].max())
    return {**merged, "mean_total": merged["total"], "total": slowest}


def measure(rank: Rank) -> list[dict[str, Any]]:
    options, last_s = rank.options, 0.0
    for number in range(max(options.warmup, LONGEST_TRIAL)):
        last_s = _merge(rank.step())["total"]
        if number == 0:
            rank.check_replicas()
        if rank.method.is_settled and (last_s > SLOW_S or number + 1 >= options.warmup):
            break
    return [_merge(rank.step()) for _ in range(1 if last_s > SLOW_S else options.steps)]


def main() -> None:
    options = rank_options(__doc__)
    torch.set_num_threads(1)
    hvd.init()
    rank = Rank(options)
    rows = measure(rank)
    if hvd.rank() == 0:
        found = {"rows": rows, "report": rank.method.report()}
        options.output.write_text(json.dumps(found), encoding="utf-8")
    hvd.barrier()


if __name__ == "__main__":
    main()
