"""Measures the training thread's work in ``compress`` and ``decompress``, and in parts of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch

from hvd_sparse.tracing import Span, Spans

WATCHED = ("select", "encode", "exchange", "decode")
PARTS = (*WATCHED, "python")
OPERATIONS = (
    "allgather_async",
    "allreduce_async",
    "alltoall_async",
    "broadcast_async",
    "poll",
    "synchronize",
)
"""Functions of Horovod that an exchange calls."""
MIN_NUMEL = 1024
"""Default of ``min_numel``. Smaller tensors and those of one dimension are sent dense."""


def clock_cost() -> float:
    """Return the seconds of CPU time that one call of ``time.thread_time`` takes."""
    pairs = [(time.thread_time(), time.thread_time()) for _ in range(2001)]
    return sorted(second - first for first, second in pairs)[1000]


class Meter:
    """Wraps a compression and measures its CPU time, less the time for reading the clock."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._is_inside = False
        self._asked = 0
        self._clock_s = clock_cost()

    def clear(self) -> None:
        self.seconds.clear()
        self.calls.clear()

    def compress(self, tensor: torch.Tensor) -> Any:
        kind = "sparse" if tensor.dim() > 1 and tensor.numel() >= MIN_NUMEL else "dense"
        self.calls[kind] += 1
        wire, context = self._measure("compress", kind, self.inner.compress, tensor)
        return wire, (kind, context)

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        kind, inner = context
        result: torch.Tensor = self._measure(
            "decompress", kind, self.inner.decompress, tensor, inner
        )
        return result

    def _measure(self, method: str, kind: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._is_inside = True
        began = time.thread_time()
        result = call(*arguments)
        worked = time.thread_time() - began - self._clock_s
        self._is_inside = False
        self.seconds[method] += worked
        self.seconds[kind] += worked
        return result

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """While the block runs, also measure the parts, in a separate step because it takes
        time."""
        self._asked = 0
        spans = spans_of(self.inner)
        clock, spans.clock = spans.clock, time.thread_time
        spans.add(self._listen)
        patches = [mock.patch.object(hvd, name, self._watching(name)) for name in OPERATIONS]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()
            spans.remove(self._listen)
            spans.clock = clock
        if self.calls["sparse"] and not self.seconds["exchange"]:
            raise AssertionError("no call of Horovod's was seen inside compress and decompress")
        worked = self.seconds["compress"] + self.seconds["decompress"]
        worked -= self._asked * self._clock_s
        self.seconds["python"] = worked - sum(self.seconds[part] for part in WATCHED)

    def _listen(self, span: Span) -> None:
        self._asked += 2
        if span.kind != "exchange":  # which goes on while other work is done
            self.seconds[span.kind] += span.end_s - span.start_s - self._clock_s

    def _watching(self, name: str) -> Callable[..., Any]:
        original = getattr(hvd, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if not self._is_inside:  # Horovod's optimizer, for itself
                return original(*arguments, **options)
            began = time.thread_time()
            result = original(*arguments, **options)
            self.seconds["exchange"] += time.thread_time() - began - self._clock_s
            self._asked += 2
            return result

        return watched


def spans_of(compressor: Any) -> Spans:
    spans: Spans = compressor.step.spans
    return spans
