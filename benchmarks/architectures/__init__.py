"""Architectures: models as lists of parameters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from benchmarks.architectures._parameters import Parameter
from benchmarks.architectures.convolutional import inception_v4, resnet50, vgg16
from benchmarks.architectures.language import lstm, transformer
from hvd_sparse.errors import UnknownName

__all__ = ["ARCHITECTURES", "Parameter", "parameters", "ready", "resnet50"]

ARCHITECTURES: dict[str, Callable[[], list[Parameter]]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "inception_v4": inception_v4,
    "lstm": lstm,
    "transformer": transformer,
}


def parameters(name: str) -> list[Parameter]:
    """Return the parameters of a model, in the order of its layers.

    Raises
    ------
    UnknownName
        If there is no such model; the message lists them.
    """
    if name not in ARCHITECTURES:
        raise UnknownName(f"no model is called {name!r}; there are: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]()


def ready(name: str) -> dict[str, float]:
    """Return when each gradient is ready, as a part of the backward pass, by operations.

    Real passes spend more time on small layers than their operations tell.
    """
    listed = list(reversed(parameters(name)))
    times = accumulate(each.flops for each in listed)
    total = sum(each.flops for each in listed)
    return {each.name: min(1.0, at / total) for each, at in zip(listed, times)}
