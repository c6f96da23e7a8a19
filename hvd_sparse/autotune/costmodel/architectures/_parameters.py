"""A model as the list of its parameters, with the work that each stands for."""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Parameter(NamedTuple):
    """A tensor of a model.

    Attributes
    ----------
    name : as in a PyTorch module
    shape : its dimensions
    flops : of the forward pass over one sample, multiplications and additions counted apart; the
        backward pass takes about twice as many
    """

    name: str
    shape: tuple[int, ...]
    flops: float

    @property
    def numel(self) -> int:
        """Entries."""
        return prod(self.shape)


NORM_FLOPS = 4
"""Of a normalisation, for each entry that passes: subtract, divide, scale, shift."""


class Maps:
    """Feature maps on their way through a convolutional network, and the parameters that they have
    passed."""

    def __init__(self, channels: int, size: int) -> None:
        self.channels = channels
        self.size = size
        self.parameters: list[Parameter] = []

    def convolve(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        entering: int | None = None,
        stride: int = 1,
        padded: bool = True,
        bias: bool = False,
    ) -> None:
        """A convolution over maps of ``entering`` channels; its output's channels and size are the
        maps' from here.

        padded : the border is filled so that stride 1 keeps the size; else the kernel stays inside
        """
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        entering = self.channels if entering is None else entering
        self.size = (
            -(-self.size // stride) if padded else (self.size - max(height, width)) // stride + 1
        )
        self.channels = channels
        shape = (channels, entering, height, width)
        self.parameters.append(Parameter(f"{name}.weight", shape, 2.0 * prod(shape) * self.size**2))
        if bias:
            self.parameters.append(
                Parameter(f"{name}.bias", (channels,), float(channels * self.size**2))
            )

    def normalise(self, name: str) -> None:
        """A batch normalisation: scale and shift."""
        flops = NORM_FLOPS / 2 * self.channels * self.size**2
        for part in ("weight", "bias"):
            self.parameters.append(Parameter(f"{name}.{part}", (self.channels,), flops))

    def pool(self, padded: bool = True) -> None:
        """Halve the size."""
        self.size = -(-self.size // 2) if padded else (self.size - 3) // 2 + 1

    def connect(self, name: str, entering: int, leaving: int) -> None:
        """A fully connected layer with a bias, after the maps."""
        self.parameters += linear(name, entering, leaving)


def linear(name: str, entering: int, leaving: int, tokens: int = 1) -> list[Parameter]:
    """Weight and bias of a fully connected layer, that is used for each of some tokens."""
    weight = Parameter(f"{name}.weight", (leaving, entering), 2.0 * leaving * entering * tokens)
    return [weight, Parameter(f"{name}.bias", (leaving,), float(leaving * tokens))]
