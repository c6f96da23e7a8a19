"""One training of a small network on handwritten digits, on the ranks of a process group."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks._limited import ROOT
from benchmarks._models import Cnn
from hvd_sparse.ddp import register

CHANNELS, HIDDEN, BATCH, MOMENTUM = 16, 128, 32, 0.9
"""Of the network, and images of a rank and step; the ranks share the examples."""
ONE_BUCKET_MB = 4096
"""For PowerSGD's hook, which over Gloo stands still with several buckets (torch 2.13)."""
START_SHARE = 0.1
"""Of the steps that PowerSGD runs dense at first, as its documentation advises."""
WARMUP_SHARE = 0.25
"""Of the steps in which ``ldte_bs`` comes down to a density below 0.01."""


@dataclass(frozen=True)
class Result:
    """What a training came to.

    Attributes
    ----------
    accuracy, loss : of the test images; percent, and the mean cross entropy
    nbytes : that a rank gives its collectives in a step, on the average over the steps
    """

    accuracy: float
    loss: float
    nbytes: float


class Meter:
    """Counts the bytes of a training's messages; ``dense`` where no hook is asked."""

    def __init__(self, model: DistributedDataParallel, method: str, steps: int, sgd: Any) -> None:
        self._steps, self._state, self._handle = steps, None, None
        self._numel = sum(parameter.numel() for parameter in model.parameters())
        self._entry = 2 if method == "fp16" else 4
        name, _, density = method.partition(" ")
        if method == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif method.startswith("powersgd"):
            self._start = max(2, round(START_SHARE * steps))
            rank = int(method.removeprefix("powersgd"))
            state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=self._start)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            self._state = state
        elif method != "dense":
            options = {"density": float(density), "optimizer": sgd, **_schedule(density, steps)}
            self._handle = register(model, name, **options)

    def nbytes(self) -> float:
        """Return the mean bytes of a step."""
        if self._handle is not None:
            return float(self._handle.stats()["bytes_sent"]) / self._steps
        if self._state is not None:
            sent = self._state.compression_stats()[2] + self._start * self._numel
            return 4.0 * sent / self._steps
        return float(self._entry * self._numel)

    def close(self) -> None:
        """Let the compressor's threads end."""
        if self._handle is not None:
            self._handle.close()


def _schedule(density: str, steps: int) -> dict[str, Any]:
    """Return a warm-up for what is rarer than 0.01."""
    value = float(density)
    if value >= 0.01:
        return {}
    stage = max(1, round(WARMUP_SHARE * steps / 4))
    return {"schedule": {"id": "exponential_warmup", "value": value, "stage_steps": stage}}


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the examples' digits: float32 [count, 8, 8] and labels, to train and to test."""
    if str(ROOT / "examples") not in sys.path:
        sys.path.insert(0, str(ROOT / "examples"))
    from digits import load

    return load()


def train(method: str, rate: float, seed: int, steps: int) -> Result:
    """Train on this rank's part of every batch; collective.

    Parameters
    ----------
    method : "dense", "fp16", "powersgd1", or a method of ours and its density, "ldte_bs 0.01"
    rate : of SGD with momentum; falls to 0 along a cosine
    seed : of the network and of the order of the images, the same for all methods
    steps : how many
    """
    torch.manual_seed(seed)
    (images, labels), test = digits()
    order, rank, size = np.random.default_rng(seed), dist.get_rank(), dist.get_world_size()
    buckets = {"bucket_cap_mb": ONE_BUCKET_MB} if method.startswith("powersgd") else {}
    model = DistributedDataParallel(Cnn(CHANNELS, HIDDEN), **buckets)
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps)
    meter = Meter(model, method, steps, sgd)
    for _ in range(steps):
        mine = order.permutation(len(labels))[: BATCH * size][rank::size]
        sgd.zero_grad()
        found = model(torch.from_numpy(images[mine]).unsqueeze(1))
        nn.functional.cross_entropy(found, torch.from_numpy(labels[mine])).backward()
        sgd.step()
        falling.step()
    with torch.no_grad():
        found = model.module(torch.from_numpy(test[0]).unsqueeze(1))
    wanted, nbytes = torch.from_numpy(test[1]), meter.nbytes()
    meter.close()
    accuracy = 100.0 * float((found.argmax(1) == wanted).float().mean())
    return Result(accuracy, float(nn.functional.cross_entropy(found, wanted)), nbytes)
