"""Architectures: models as lists of parameters, and profiles made of them where none was
measured."""

from __future__ import annotations

from collections.abc import Callable

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
"""Operations a second of the assumed processor, where no time of a backward pass is given."""

SAMPLES = 32
"""Assumed samples of a rank in a step, where no time of a backward pass is given."""


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


def replayed(name: str, backward_s: float | None = None) -> Profile:
    """Return a model's profile with backward times in proportion to each layer's operations.

    The forward pass takes half as long.  Real passes spend more time on small layers than their
    operations tell, so a measured profile is better wherever there is one.

    Parameters
    ----------
    name : key of ``ARCHITECTURES``
    backward_s : seconds of the whole backward pass; by default those of 32 samples at 10 Tflop/s

    Raises
    ------
    UnknownName
        If there is no such model.
    """
    listed = parameters(name)
    per_flop_s = 2 * SAMPLES / FLOPS
    layers = [
        Layer(p.name, p.numel, p.flops * per_flop_s, len(p.shape) > 1 and p.numel >= MIN_NUMEL)
        for p in reversed(listed)
    ]
    profile = Profile(tuple(layers), sum(p.flops for p in listed) * per_flop_s / 2)
    return profile if backward_s is None else profile.scaled(backward_s)
