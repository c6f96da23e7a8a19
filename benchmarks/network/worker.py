"""One rank: every method in turn, round after round.  Started by ``benchmarks.network`` under
horovodrun or mpirun."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from benchmarks.architectures import ARCHITECTURES, parameters
from benchmarks.network import methods as method_module
from benchmarks.network.cluster import interface_bytes
from benchmarks.network.gradients import fill, pool
from benchmarks.network.groupings import create_ways
from benchmarks.network.models import MODELS, loss
from benchmarks.network.spans import PHASES, Spans
from benchmarks.network.timings import ready
from hvd_sparse.density_text import density_argument
from hvd_sparse.registry import CODECS

SLOW_S = 1.5
"""A method whose step takes longer is measured once a round, others several times."""
LONGEST_TRIAL = 60
"""Steps, of a method that tries several ways."""


class Rank:
    """The parameters, their gradients, and the methods that share them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.spans = Spans()
        self.model: nn.Module | None = None
        if options.compute == "real":
            torch.manual_seed(7)
            self.model = MODELS[options.model]()
            named = list(self.model.named_parameters())
        else:
            # no value of a parameter is ever read: one entry stands for all
            named = [
                (
                    listed.name,
                    nn.Parameter(torch.zeros(()).expand(listed.shape), requires_grad=True),
                )
                for listed in parameters(options.model)
            ]
        self.named = named
        self.parameters = [parameter for _, parameter in named]
        self.work = torch.empty(sum(parameter.numel() for parameter in self.parameters))
        self.source = pool(hvd.rank())
        self.rng = torch.Generator().manual_seed(hvd.rank())
        self.steps = 0
        self.ready = (
            ready(options.model, named)
            if options.compute in ("asleep", "busy")
            else [0.0] * len(named)
        )
        self.methods = self._create(options)
        self.active: Any = None
        self.first_s: float | None = None
        """When a step's first gradient came."""
        for position, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._submitter(position))
        method_module.watch(self.spans, [CODECS.get(id) for id in CODECS.ids()])

    def _create(self, options: argparse.Namespace) -> Mapping[str, method_module.Method]:
        if options.plans:
            return create_ways(self.named, options.density, self.spans)
        return {
            s: method_module.create(s, self.named, options.density, self.spans)
            for s in options.methods
        }

    def _submitter(self, position: int) -> Callable[[nn.Parameter], None]:
        def submit(_: nn.Parameter) -> None:
            self.first_s = self.first_s or time.perf_counter()
            self.active.submit(position)

        return submit

    def step(self, spec: str) -> dict[str, Any]:
        """One step of one method, on all ranks at once; what this rank saw of it."""
        self.active = self.methods[spec]
        self.steps += 1
        views = self._prepare()
        self.active.begin()
        hvd.barrier()
        self.spans.clear()
        received, sent = interface_bytes()
        self.first_s = None
        start, used = time.perf_counter(), time.process_time()
        if self.model is not None:
            self._compute_really()
        else:
            self._replay(views, start)
        self.active.finish()
        end, used = time.perf_counter(), time.process_time() - used
        total, exchange = end - start, end - (self.first_s or start)
        hvd.barrier()
        # As an optimizer does that applies them: gradients that are thrown away are taken back.
        torch.autograd.graph.increment_version(self.parameters)
        after = interface_bytes()
        phases = {name: self.spans.seconds[name] for name in PHASES}
        phases |= {f"{name}_processor": self.spans.processor[name] for name in PHASES}
        return {
            "total": total,
            "exchange": exchange,
            "all_threads": used,
            **phases,
            "received": after[0] - received,
            "sent": after[1] - sent,
        }

    def _prepare(self) -> list[torch.Tensor]:
        if self.model is not None:
            for parameter in self.parameters:
                parameter.grad = None
            return []
        fill(self.work.numpy(), self.source, self.steps)
        pieces = self.work.split([parameter.numel() for parameter in self.parameters])
        return [piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters)]

    def _compute_really(self) -> None:
        with self.spans.phase("backward"):
            loss(self.model, self.rng).backward()

    def _replay(self, views: list[torch.Tensor], start: float) -> None:
        order = sorted(range(len(views)), key=lambda i: (self.ready[i], -i))
        done_ms = 0.0
        for position in order:
            ready_ms = self.ready[position] * self.options.backward_ms
            with self.spans.phase("backward"):
                if self.options.compute == "asleep":
                    _sleep_until(start + ready_ms / 1e3)
                elif self.options.compute == "busy":
                    _keep_busy((ready_ms - done_ms) / 1e3)
            done_ms = ready_ms
            parameter = self.parameters[position]
            parameter.grad = views[position]
            for hook in list(parameter._post_accumulate_grad_hooks.values()):
                hook(parameter)

    def checksum(self) -> int:
        """Return a checksum of the averaged gradients' bits, which is the same on all ranks if the
        gradients are."""
        bits = [
            parameter.grad.view(-1).view(torch.int32).sum(dtype=torch.int64)
            for parameter in self.parameters
        ]
        return int(torch.stack(bits).sum())


def _sleep_until(when: float) -> None:
    """Sleep, as while a GPU computes: the core is free."""
    left = when - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _keep_busy(seconds: float) -> None:
    """Use so much of this core's time, however long that takes beside others."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _merge(row: dict[str, Any]) -> dict[str, Any]:
    """Over the ranks: the slowest one's times are the step's; of everything else the mean."""
    vector = torch.tensor([[float(value) for value in row.values()]], dtype=torch.float64)
    gathered = hvd.allgather(vector, name="bench.merge").numpy()
    merged = dict(zip(row, gathered.mean(axis=0).tolist()))
    slowest = dict(zip(row, gathered.max(axis=0).tolist()))
    return {
        **merged,
        "mean_total": merged["total"],
        **{name: slowest[name] for name in ("total", "exchange")},
    }


def _check_replicas(rank: Rank, spec: str) -> None:
    sums = hvd.allgather(torch.tensor([rank.checksum()]), name="bench.check").tolist()
    if len(set(sums)) != 1:
        raise AssertionError(f"{spec}: the averaged gradients differ between ranks: {sums}")


def measure(rank: Rank) -> list[dict[str, Any]]:
    """Warm up, then rounds in which every method has its turn, each round in another order."""
    options, rows = rank.options, []
    specs = list(rank.methods)
    last: dict[str, float] = {}
    for spec in specs:
        for number in range(max(options.warmup, LONGEST_TRIAL)):
            last[spec] = _merge(rank.step(spec))["total"]
            if number == 0:
                _check_replicas(rank, spec)
            if rank.methods[spec].is_settled and (
                last[spec] > SLOW_S or number + 1 >= options.warmup
            ):
                break
    for round_number in range(options.rounds):
        for spec in random.Random(round_number).sample(
            specs, len(specs)
        ):  # in the same order on all ranks
            for _ in range(1 if last[spec] > SLOW_S else options.steps):
                merged = _merge(rank.step(spec))
                last[spec] = merged["total"]
                rows.append({"method": spec, "round": round_number, **merged})
        if hvd.rank() == 0:
            print(
                f"round {round_number}: " + ", ".join(f"{s} {1e3 * last[s]:.1f} ms" for s in specs),
                flush=True,
            )
    rows.sort(
        key=lambda row: (row["round"], specs.index(row["method"]))
    )  # tables are in the order that was asked for
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=ARCHITECTURES)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--methods", nargs="+")
    what.add_argument(
        "--plans", action="store_true", help="the ways of grouping, instead of methods"
    )
    parser.add_argument("--compute", choices=("none", "asleep", "busy", "real"))
    parser.add_argument("--backward-ms", type=float)
    parser.add_argument("--density", type=density_argument)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    rank = Rank(options)
    rows = measure(rank)
    if hvd.rank() == 0:
        reports = {spec: method.report() for spec, method in rank.methods.items()}
        options.output.write_text(json.dumps({"rows": rows, "reports": reports}), encoding="utf-8")
    hvd.barrier()


if __name__ == "__main__":
    main()
