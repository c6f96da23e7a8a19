"""Recorded times at which the gradients of a backward pass are ready, to be replayed.

    python -m benchmarks.network.timings        run every model on this machine, write timings.json

Fractions of the pass, so that it can be replayed at the length that it has on another processor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import architectures
from benchmarks.network.models import MODELS, loss

TIMINGS = Path(__file__).resolve().parent / "timings.json"
PASSES = 5


def ready(model: str, named: Sequence[tuple[str, Any]]) -> list[float]:
    """Return the ready time of each parameter of the model, in (0, 1]; by its operations where none
    was recorded."""
    recorded = json.loads(TIMINGS.read_text(encoding="utf-8")).get(model)
    if recorded is None:
        recorded = architectures.ready(model)
    return [recorded[name] for name, _ in named]


def _note(seen: dict[str, float], key: str) -> Callable[[nn.Parameter], None]:
    def note(_: nn.Parameter) -> None:
        seen[key] = time.perf_counter()

    return note


def record(model: nn.Module) -> dict[str, float]:
    """Medians over a few passes; the first one only warms up."""
    seen: dict[str, float] = {}
    for key, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(_note(seen, key))
    passes = []
    for _ in range(1 + PASSES):
        value = loss(model, torch.Generator().manual_seed(0))
        start = time.perf_counter()
        value.backward()
        length = time.perf_counter() - start
        passes.append({key: (at - start) / length for key, at in seen.items()})
    return {key: round(float(np.median([one[key] for one in passes[1:]])), 4) for key in passes[0]}


def main() -> None:
    torch.set_num_threads(1)
    recorded = {name: record(make()) for name, make in MODELS.items()}
    TIMINGS.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
