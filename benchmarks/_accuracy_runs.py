"""One run of ``hvd-sparse bench accuracy``: a network trained by simulated workers, or by real
ranks.

Simulated workers are threads of one process.  Each has the network, torch's own optimizer and a
numpy session; what is handed over to the memory is what ``optimizer=`` hands over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._accuracy_tasks import TASKS, Arrays, Task

WEIGHT_DECAY = 0.01
"""Of AdamW, torch's own."""
STAGES = 4
"""Of a warm-up, whose densities fall from 0.25 by 4."""


@dataclass(frozen=True)
class Line:
    """One line of the page: a training without its learning rate and seed.

    Attributes
    ----------
    method : a named method, or "dense"
    density : None for dense
    is_handed : the optimizer is handed over
    warmup : part of the steps at falling densities
    """

    task: str
    optimizer: str
    method: str
    density: float | None
    is_handed: bool
    warmup: float
    workers: int
    epochs: int
    is_real: bool = False

    def __str__(self) -> str:
        if self.method == "dense":
            return "dense"
        how = "" if self.is_handed else ", optimizer kept"
        return f"{self.method}{how}{', warm-up' if self.warmup else ''}"


@dataclass(frozen=True)
class Run:
    """A line with its rate and seed."""

    line: Line
    rate: float
    seed: int

    @property
    def key(self) -> str:
        """Names the file of its result."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{self.line.task}-{self.line.optimizer}-{self.line.method}-{digest}"


def schedule_of(line: Line, steps: int) -> Any:
    """The warm-up, as an option; None without one."""
    if not line.warmup:
        return None
    stage = max(1, round(line.warmup * steps / STAGES))
    return {
        "id": "exponential_warmup",
        "value": line.density,
        "stage_steps": stage,
        "stages": STAGES,
    }


def make_optimizer(name: str, network: nn.Module, rate: float) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    return torch.optim.SGD(
        network.parameters(), lr=rate, momentum=0.9 if name == "momentum" else 0.0
    )


def cosine(optimizer: Any, steps: int) -> Any:
    """The rate falls to 0 along a cosine."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def steps_of(task: Task, line: Line, train: torch.Tensor) -> int:
    return len(train) // (line.workers * task.batch)


def batches_of(run: Run, task: Task, count: int, rank: int, epoch: int) -> Any:
    """This worker's batches of an epoch, as indices; together the workers see a permutation."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * run.seed + epoch))
    size = run.line.workers * task.batch
    for first in range(0, count - size + 1, size):
        yield order[first + rank * task.batch : first + (rank + 1) * task.batch]


@torch.no_grad()
def accuracy_of(network: nn.Module, data: Arrays) -> float:
    hits = sum(
        int((network(images).argmax(1) == labels).sum())
        for images, labels in zip(data[2].split(1000), data[3].split(1000))
    )
    return 100.0 * hits / len(data[3])


def simulate(run: Run) -> dict[str, Any]:
    """Train by simulated workers; the result, JSON-able."""
    from hvd_sparse.collectives.local import LocalWorld

    torch.set_num_threads(1)
    task = TASKS[run.line.task]
    data = task.load()
    torch.manual_seed(run.seed)
    start = task.network().state_dict()
    began = time.perf_counter()
    results = LocalWorld(run.line.workers, timeout_s=3600.0).run(
        lambda collective: _work(run, task, data, start, collective)
    )
    if len({result.pop("digest") for result in results}) != 1:
        raise AssertionError(f"{run.key}: the workers have different parameters")
    return {**results[0], "seconds": time.perf_counter() - began}


def _work(run: Run, task: Task, data: Arrays, start: Any, collective: Any) -> dict[str, Any]:
    """Train as one simulated worker."""
    network = task.network()
    network.load_state_dict(start)
    optimizer = make_optimizer(run.line.optimizer, network, run.rate)
    reduce, stats = _reducer(
        run.line, network, optimizer, collective, steps_of(task, run.line, data[0])
    )
    return _train(run, task, data, network, optimizer, collective.rank, reduce, stats)


def _train(
    run: Run,
    task: Task,
    data: Arrays,
    network: nn.Module,
    optimizer: Any,
    rank: int,
    reduce: Any,
    stats: Any,
) -> dict[str, Any]:
    steps = steps_of(task, run.line, data[0])
    schedule = cosine(optimizer, steps * run.line.epochs)
    curve, losses = [], []
    for epoch in range(run.line.epochs):
        for mine in batches_of(run, task, len(data[0]), rank, epoch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(data[0][mine]), data[1][mine])
            loss.backward()
            reduce()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        if rank == 0:
            curve.append(accuracy_of(network, data))
    report = stats()
    digest = hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in network.parameters())
    ).hexdigest()
    return {
        "accuracy": curve[-1] if curve else None,
        "curve": curve,
        "loss": sum(losses[-steps:]) / steps,
        "steps": len(losses),
        "density_achieved": report.get("density_achieved"),
        "bytes_per_step": report["bytes_sent"] / len(losses),
        "digest": digest,
    }


def _reducer(
    line: Line, network: nn.Module, optimizer: Any, collective: Any, steps: int
) -> tuple[Any, Any]:
    """Return two functions: one averages a worker's gradients in place, one returns the bytes it
    took."""
    named = list(network.named_parameters())
    if line.method == "dense":
        nbytes = sum(p.numel() * p.element_size() for _, p in named)
        sent = {"steps": 0}

        def average() -> None:
            sent["steps"] += 1
            for name, parameter in named:
                total = collective.allreduce(parameter.grad.numpy().reshape(-1), name).wait(None)
                parameter.grad.copy_(torch.from_numpy(total / line.workers).view(parameter.shape))

        return average, lambda: {"bytes_sent": nbytes * sent["steps"]}
    session = _session_of(line, named, optimizer, collective, steps)

    def exchange() -> None:
        reduced = session.reduce({name: parameter.grad.numpy() for name, parameter in named})
        for name, parameter in named:
            parameter.grad.copy_(torch.from_numpy(reduced[name]))

    return exchange, lambda: session.step.stats.report(line.density)


def _session_of(line: Line, named: Any, optimizer: Any, collective: Any, steps: int) -> Any:
    from hvd_sparse.core.step.session import Session
    from hvd_sparse.methods import Methods
    from hvd_sparse.methods.spelling import read_method
    from hvd_sparse.torch.arrays import spec_of
    from hvd_sparse.torch.optimizer import Follower, read_optimizer

    class Simulated(Methods):
        """The named methods, of which only the configuration is wanted."""

        has_begun = True

        @classmethod
        def _create(
            cls, params: Any, configuration: Any, process_set: Any, grad_scaler: Any
        ) -> Any:
            made = cls()
            made.configuration = configuration
            return made

        @classmethod
        def _read_optimizer(cls, optimizer: Any) -> Any:
            return read_optimizer(optimizer)

        def take_over(self, optimizer: Any) -> None:
            self.follower = Follower(optimizer, self)

    options: dict[str, Any] = {"optimizer": optimizer} if line.is_handed else {}
    schedule = schedule_of(line, steps * line.epochs)
    if schedule is not None:
        options["schedule"] = schedule
    made = read_method(line.method).create(
        Simulated, None, density=line.density, timeout_s=None, **options
    )
    specs = [spec_of(name, parameter) for name, parameter in named]
    session = Session(made.configuration, specs, collective, kernels=_kernels())
    if line.is_handed:
        parameters = dict(named)

        def settings_of(position: int) -> dict[str, Any]:
            spec = specs[position]
            settings: dict[str, Any] = made.follower.settings_of(
                spec.key, parameters[spec.key], spec
            )
            return settings

        session.step.settings_of = settings_of
    return session


def _kernels() -> Any:
    from hvd_sparse.core.kernels.engines import resolve_engine

    return resolve_engine(None)


def on_real_ranks(run: Run) -> dict[str, Any]:
    """Train by Horovod, on ranks of this machine; the result of the first."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        launcher = [
            str(Path(sys.executable).parent / "horovodrun"),
            "--gloo",
            "-np",
            str(run.line.workers),
        ]
        program = [
            sys.executable,
            "-m",
            "benchmarks._accuracy_runs",
            json.dumps(asdict(run)),
            str(path),
        ]
        root = str(Path(__file__).resolve().parent.parent)
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        began = time.perf_counter()
        done = subprocess.run(
            [*launcher, *program],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=7200,
        )
        if done.returncode or not path.exists():
            raise RuntimeError(
                f"{run.key}: real ranks ended with "
                f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        result: dict[str, Any] = json.loads(path.read_text())
        return {**result, "seconds": time.perf_counter() - began}


def rank_main() -> None:
    """A real rank.  Arguments: the run, and where its result goes."""
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
    task, line = TASKS[run.line.task], run.line
    data = task.load()
    torch.manual_seed(run.seed)
    network = task.network()
    optimizer = make_optimizer(line.optimizer, network, run.rate)
    compression: Any = hvd.Compression.none
    if line.method != "dense":
        made: dict[str, Any] = {"optimizer": optimizer} if line.is_handed else {}
        schedule = schedule_of(line, steps_of(task, line, data[0]) * line.epochs)
        if schedule is not None:
            made["schedule"] = schedule
        compression = read_method(line.method).create(
            Compression, network.named_parameters(), density=line.density, **made
        )
    wrapped = hvd.DistributedOptimizer(
        optimizer, named_parameters=network.named_parameters(), compression=compression
    )
    nbytes = sum(p.numel() * p.element_size() for p in network.parameters()) * line.epochs
    whole = {"bytes_sent": nbytes * steps_of(task, line, data[0])}
    stats = compression.stats if line.method != "dense" else lambda: whole
    result = _train(run, task, data, network, wrapped, hvd.rank(), lambda: None, stats)
    digests = hvd.allgather_object(result.pop("digest"))
    if len(set(digests)) != 1:
        raise AssertionError(f"{run.key}: the ranks have different parameters")
    if hvd.rank() == 0:
        options.path.write_text(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    rank_main()
