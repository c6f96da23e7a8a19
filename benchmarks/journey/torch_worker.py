"""One rank in PyTorch: records the calls of ``compress`` and ``decompress`` for each tensor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from torch import nn

import hvd_sparse
from benchmarks._ranks import report
from benchmarks.journey.recorder import Call, recording
from benchmarks.journey.ways import OPTIONS, RECORDED, WARM, WIDTH, described
from hvd_sparse.torch import Compression

PACKAGE = Path(hvd_sparse.__file__).parent
LAYERS = 30
SLEEP_S = 0.02
"""Seconds; every wait ends after one sleep of this length."""


class Followed:
    """A compression that records what ``compress`` and ``decompress`` call. Tensors have numbers in
    the order of ``compress``, because Horovod passes no names."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_recording = False
        self.ways: dict[tuple[int, str], list[list[Call]]] = {}
        """Recorded calls by the number of the tensor and the method."""
        self._place = 0

    def begin(self) -> None:
        """Begin a step."""
        self._place = 0

    def compress(self, tensor: torch.Tensor) -> Any:
        place, self._place = self._place, self._place + 1
        wire, context = self._follow(place, "compress", self._inner.compress, tensor)
        return wire, (place, context)

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        result: torch.Tensor = self._follow(
            context[0], "decompress", self._inner.decompress, tensor, context[1]
        )
        return result

    def _follow(self, place: int, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if not self.is_recording:
            return call(*arguments)
        with recording(PACKAGE) as way:
            result = call(*arguments)
        self.ways.setdefault((place, method), []).append(way)
        return result


@contextmanager
def long_sleeps() -> Iterator[None]:
    """While the block runs, make every sleep of this thread longer than an exchange takes."""
    sleep, trains = time.sleep, threading.current_thread()

    def longer(seconds: float) -> None:
        sleep(max(seconds, SLEEP_S) if threading.current_thread() is trains else seconds)

    with mock.patch.object(time, "sleep", longer):
        yield


def follow(name: str, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Train a model; return the calls of a typical step by tensor and by method."""
    named = [(f"{name}.{each}", parameter) for each, parameter in model.named_parameters()]
    inner = Compression.ldte_bs(named, name=name, **OPTIONS)
    compression = Followed(inner)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        named_parameters=named,
        compression=compression,
    )
    order: list[str] = []
    for each, parameter in named:
        parameter.register_post_accumulate_grad_hook(_noting(order, each))
    rng = torch.Generator().manual_seed(hvd.rank())
    for number in range(WARM + RECORDED):
        compression.is_recording = number >= WARM
        order.clear()
        compression.begin()
        optimizer.zero_grad()
        with long_sleeps():
            model(torch.randn(8, WIDTH, generator=rng)).square().sum().backward()
            optimizer.step()
    found: dict[str, dict[str, Any]] = {each: {} for each in order}
    for (place, method), ways in sorted(compression.ways.items()):
        found[order[place]][method] = described(ways)
    inner.close()
    return found


def _noting(order: list[str], name: str) -> Callable[[Any], None]:
    def note(_: Any) -> None:
        order.append(name)

    return note


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    hvd.init()
    alone = follow("alone", nn.Linear(WIDTH, WIDTH, bias=False))
    layers = [nn.Linear(WIDTH, WIDTH, bias=number == LAYERS // 2) for number in range(LAYERS)]
    among = follow("among", nn.Sequential(*layers))
    report(hvd.rank(), {**alone, **among})
    hvd.barrier()


if __name__ == "__main__":
    main()
