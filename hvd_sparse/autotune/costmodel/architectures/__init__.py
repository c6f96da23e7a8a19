"""Models as lists of parameters, computed from their architecture; profiles made of them, where
none was measured."""

from __future__ import annotations

from typing import Callable

from hvd_sparse.autotune.costmodel.architectures._parameters import Parameter
from hvd_sparse.autotune.costmodel.architectures.convolutional import inception_v4, resnet50, vgg16
from hvd_sparse.autotune.costmodel.architectures.language import lstm, transformer
from hvd_sparse.autotune.costmodel.profile import MIN_NUMEL, Layer, Profile
from hvd_sparse.errors import UnknownName

__all__ = ["ARCHITECTURES", "Parameter", "parameters", "replayed", "resnet50"]

ARCHITECTURES: dict[str, Callable[[], list[Parameter]]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "inception_v4": inception_v4,
    "lstm": lstm,
    "transformer": transformer,
}

FLOPS = 10e12
"""Operations a second of the processor that is assumed where nobody says how long a backward pass
takes."""

SAMPLES = 32
"""A rank's samples in a step, where nobody says."""


def parameters(name: str) -> list[Parameter]:
    """Return a model's parameters in the order of its layers; UnknownName lists the models there
    are."""
    if name not in ARCHITECTURES:
        raise UnknownName(f"no model is called {name!r}; there are: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]()


def replayed(name: str, backward_s: float | None = None) -> Profile:
    """A model's profile with backward times in proportion to each layer's operations, the forward
    pass half as long.

    backward_s : of the whole pass, seconds; without it what 32 samples take at 10 Tflop/s.  Real
        passes spend more on small layers than their operations tell: a measured profile is better
        wherever there is one.
    """
    listed = parameters(name)
    per_flop_s = 2 * SAMPLES / FLOPS
    layers = [
        Layer(p.name, p.numel, p.flops * per_flop_s, len(p.shape) > 1 and p.numel >= MIN_NUMEL)
        for p in reversed(listed)
    ]
    profile = Profile(tuple(layers), sum(p.flops for p in listed) * per_flop_s / 2)
    return profile if backward_s is None else profile.scaled(backward_s)
