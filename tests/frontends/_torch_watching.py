"""Watching a run changes nothing of it, says what was sent, and names the rank that lags."""

from __future__ import annotations

import time
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _torch_cases import digest_of, give_gradients
from _torch_laws import optimizer_without_motion
from harness import slow

from hvd_sparse.torch import Compression

EVERY, STEPS = 2, 5
PAUSE_S = slow(0.3)
SHAPES = {"wide": (40, 30), "tall": (90, 8)}
cases = Cases()


def train(name: str, **options: Any) -> dict[str, Any]:
    """Some steps, in each of which the last rank comes late; what came of them."""
    named = {key: torch.nn.Parameter(torch.ones(shape)) for key, shape in SHAPES.items()}
    compressor = Compression.ldte_bs(
        named.items(), density=0.1, name=name, **SPARSE_ONLY, **options
    )
    optimizer = optimizer_without_motion(named, compressor)
    draw, seen = torch.Generator().manual_seed(hvd.rank()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        gradients = [torch.randn(shape, generator=draw) for shape in SHAPES.values()]
        if hvd.rank() == hvd.size() - 1:
            time.sleep(PAUSE_S)
        give_gradients(dict(zip(named.values(), gradients)))
        optimizer.step()
        seen.append(digest_of(parameter.grad for parameter in named.values()))
        compressor.log(loss=torch.tensor(0.5, requires_grad=True))
    text, stats = compressor.summary(all_ranks=True), compressor.stats()
    compressor.close()
    return {"gradients": seen, "summary": text, "stats": stats}


@cases
def watched(name: str) -> dict[str, Any]:
    heard: list[dict[str, Any]] = []
    plain = train(f"{name}.plain")
    # One rank alone is told to write: what is written is no affair of the others.
    options: dict[str, Any] = (
        {} if hvd.rank() else {"telemetry": heard.append, "telemetry_every": EVERY}
    )
    found = train(f"{name}.watched", **options)
    return {**found, "records": heard, "plain": plain["gradients"]}
