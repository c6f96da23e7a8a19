"""Well-known models as lists of parameters: names, shapes, and when their gradients are ready.

``architectures.json`` was recorded from real passes of PyTorch modules. Only the times of
Inception-v4 were computed from the number of operations of its layers.
"""

from __future__ import annotations

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from hvd_sparse.errors import UnknownName

FILE = Path(__file__).with_suffix(".json")
ARCHITECTURES = ("resnet50", "vgg16", "inception_v4", "lstm", "transformer")


class Parameter(NamedTuple):
    """A parameter. Its gradient is ready after the fraction ``ready`` of the backward pass."""

    name: str
    shape: tuple[int, ...]
    ready: float

    @property
    def numel(self) -> int:
        return prod(self.shape)


def parameters(name: str) -> list[Parameter]:
    """Return the parameters of a model, in the order of its layers."""
    return [Parameter(name, tuple(shape), ready) for name, shape, ready in _of(name)["parameters"]]


def flops(name: str) -> float:
    """Return the operations of the forward pass for one sample. A backward pass has twice as
    many."""
    return float(_of(name)["flops"])


def _of(name: str) -> dict[str, Any]:
    if name not in ARCHITECTURES:
        raise UnknownName(f"no model is called {name!r}; there are: {', '.join(ARCHITECTURES)}")
    described: dict[str, Any] = _read()[name]
    return described


@cache
def _read() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return document
