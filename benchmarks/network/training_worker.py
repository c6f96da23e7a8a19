"""One host of a whole training, which ``benchmarks.network.trainings`` starts. The launcher is
horovodrun or, for PowerSGD under DistributedDataParallel, mpirun."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.network.cluster import interface_bytes
from benchmarks.network.tasks import PART, TASKS, Task
from benchmarks.network.training_store import Training

POINTS = 24
"""Number of points of a curve."""
MOMENTUM, STEPS_ALONE = 0.9, 30


class Horovod:
    """A training under Horovod with dense, fp16, a method of the package, or a baseline."""

    def __init__(self, training: Training, network: nn.Module) -> None:
        import horovod.torch as hvd

        from benchmarks.network import methods
        from benchmarks.network.spans import Spans

        hvd.init()
        self._hvd, self.bare, self.network, self.rank = hvd, network, network, hvd.rank()
        self._peer: methods.Gathered | None = None
        task, named = TASKS[training.task], list(network.named_parameters())
        if training.method in methods.PEERS:
            peer = methods.PEERS[training.method]
            self._peer = peer(named, training.density, Spans(), training.method)
            for position, parameter in enumerate(network.parameters()):
                parameter.register_post_accumulate_grad_hook(_submitter(self._peer, position))
            self.optimizer = _optimizer(task, network, training.rate, peer.has_momentum)
            self.schedule = _schedule(self.optimizer, training.steps)
            return
        optimizer = _optimizer(task, network, training.rate)
        self.schedule = _schedule(optimizer, training.steps)
        self.compression = methods.compression(
            training.method,
            named,
            {"optimizer": optimizer, "scheduler": self.schedule, "steps": training.steps},
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=self.compression
        )

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        if self._peer is not None:
            self._peer.finish()

    def barrier(self) -> None:
        self._hvd.barrier()

    def gather(self, told: Any) -> list[Any]:
        found: list[Any] = self._hvd.allgather_object(told)
        return found

    def close(self) -> None:
        self._hvd.barrier()
        self._hvd.shutdown()


class Ddp:
    """A training under DistributedDataParallel over Gloo, with a hook."""

    def __init__(self, training: Training, network: nn.Module) -> None:
        import torch.distributed as dist

        from benchmarks.network import ddp_worker

        ddp_worker.join()
        self._dist, self.bare, self.rank = dist, network, dist.get_rank()
        self.network = ddp_worker.wrap(network, training.method, training.density)
        self.optimizer = _optimizer(TASKS[training.task], network, training.rate)
        self.schedule = _schedule(self.optimizer, training.steps)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def barrier(self) -> None:
        self._dist.barrier()

    def gather(self, told: Any) -> list[Any]:
        found: list[Any] = [None] * self._dist.get_world_size()
        self._dist.all_gather_object(found, told)
        return found

    def close(self) -> None:
        self._dist.barrier()
        os._exit(0)  # past Gloo's end, which waits for pairs that other hosts have closed


def _submitter(method: Any, position: int) -> Callable[[nn.Parameter], None]:
    return lambda _: method.submit(position)


def _optimizer(
    task: Task, network: nn.Module, rate: float, has_momentum: bool = False
) -> torch.optim.Optimizer:
    """Return the task's optimizer, without momentum for matrices if the method has its own."""
    if task.optimizer == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=rate, eps=task.epsilon, weight_decay=0.01)
    corrected = [p for p in network.parameters() if has_momentum and p.dim() > 1]
    others = [p for p in network.parameters() if not has_momentum or p.dim() == 1]
    groups = [{"params": corrected, "momentum": 0.0}] if corrected else []
    return torch.optim.SGD([*groups, {"params": others}], lr=rate, momentum=MOMENTUM)


def _schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


class Meter:
    """Measures seconds and bytes of training, without the tests of accuracy."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(("wall", "worked", "trained", "received"), 0.0)
        self._began: dict[str, float] | None = None

    def start(self) -> None:
        self._began = self._began or self._read()

    def stop(self) -> None:
        assert self._began is not None
        for name, value in self._read().items():
            self.sums[name] += value - self._began[name]
        self._began = None

    @property
    def is_running(self) -> bool:
        return self._began is not None

    @staticmethod
    def _read() -> dict[str, float]:
        return {
            "wall": time.perf_counter(),
            "worked": time.process_time(),
            "trained": time.thread_time(),
            "received": float(interface_bytes()[0]),
        }


def create(training: Training) -> Horovod | Ddp:
    task = TASKS[training.task]
    torch.manual_seed(training.seed)
    network = task.network(task.load())
    return (Ddp if training.method.startswith("powersgd") else Horovod)(training, network)


def train(training: Training, host: Horovod | Ddp, steps: int) -> dict[str, Any]:
    """Make the first ``steps`` steps of a training whose learning rate falls to 0 along a cosine,
    and return the results. Raises AssertionError if the hosts' parameters differ at the end."""
    task, meter = TASKS[training.task], Meter()
    data = task.load()
    each = task.batch // training.hosts
    every, curve = max(1, training.steps // POINTS), []
    for step in range(steps):
        chosen = data.draw(training.seed, step, task.batch).split(each)[host.rank]
        if not meter.is_running:
            host.barrier()
            meter.start()
        host.optimizer.zero_grad()
        host.backward(data.loss(host.network, chosen))
        host.optimizer.step()
        host.schedule.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            meter.stop()
            score = data.score(host.bare, PART) if host.rank == 0 else 0.0
            curve.append((step + 1, round(meter.sums["wall"], 4), round(score, 4)))
    if len(set(host.gather(_digest(host.bare)))) != 1:
        raise AssertionError(f"{training}: the hosts have different parameters")
    of_a_step = {name: value / steps for name, value in meter.sums.items()}
    return {
        "curve": curve,
        "score": round(data.score(host.bare), 4),
        "step_ms": 1e3 * of_a_step["wall"],
        "worked_ms": 1e3 * of_a_step["worked"],
        "trained_ms": 1e3 * of_a_step["trained"],
        "received": round(of_a_step["received"]),
        "verdict": str(getattr(getattr(host, "compression", None), "verdict", None) or ""),
    }


def alone(training: Training) -> dict[str, float]:
    """Return the median milliseconds of a step without Horovod: of its gradients, and of the
    optimizer's update."""
    task, times = TASKS[training.task], []
    data = task.load()
    network = task.network(data)
    optimizer = _optimizer(task, network, training.rate)
    for step in range(STEPS_ALONE):
        chosen = data.draw(training.seed, step, task.batch // training.hosts)
        began_s = time.perf_counter()
        optimizer.zero_grad()
        data.loss(network, chosen).backward()  # type: ignore[no-untyped-call]
        computed_s = time.perf_counter()
        optimizer.step()
        times.append((computed_s - began_s, time.perf_counter() - computed_s))
    gradients_s, updates_s = zip(*times)
    return {"gradient_ms": 1e3 * median(gradients_s), "update_ms": 1e3 * median(updates_s)}


def _digest(network: nn.Module) -> str:
    content = b"".join(each.detach().numpy().tobytes() for each in network.parameters())
    return hashlib.sha256(content).hexdigest()


def _take_a_core() -> None:
    """Bind this process and its later threads to the core of its host."""
    cores, number = sorted(os.sched_getaffinity(0)), int(socket.gethostname().removeprefix("host"))
    os.sched_setaffinity(0, {cores[(number - 1) % len(cores)]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", type=json.loads)
    parser.add_argument("steps", type=int)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    _take_a_core()
    torch.set_num_threads(1)
    training = Training(**options.training)
    before = alone(training)  # Horovod's thread does not run yet
    host = create(training)
    result = train(training, host, options.steps) | before
    if host.rank == 0:
        options.output.write_text(json.dumps(result), encoding="utf-8")
    host.close()


if __name__ == "__main__":
    main()
