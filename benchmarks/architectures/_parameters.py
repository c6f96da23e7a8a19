"""Parameters of a model, with the operations that each stands for."""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Parameter(NamedTuple):
    """A parameter of a model.

    Attributes
    ----------
    name : name as in a PyTorch module
    shape : its dimensions
    flops : operations of the forward pass over one sample, multiplications and additions counted
        apart; the backward pass takes about twice as many
    """

    name: str
    shape: tuple[int, ...]
    flops: float

    @property
    def numel(self) -> int:
        """Return the number of entries."""
        return prod(self.shape)


NORM_FLOPS = 4
"""Operations of a normalisation for each entry that passes: subtract, divide, scale, shift."""


class Maps:
    """Feature maps on their way through a convolutional network.

    Parameters
    ----------
    channels : of the input
    size : width and height of the input

    Attributes
    ----------
    parameters : those of the layers that the maps have passed
    """

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
        """Pass a convolution, whose output's channels and size the maps then have.

        Parameters
        ----------
        name : of the layer
        channels : of the output
        kernel : side of a square kernel, or (height, width)
        entering : channels of the input; by default those of the maps
        stride : of the kernel
        padded : the border is filled so that stride 1 keeps the size; else the kernel stays inside
        bias : the layer has one
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
        """Pass a batch normalisation, with a scale and a shift."""
        flops = NORM_FLOPS / 2 * self.channels * self.size**2
        for part in ("weight", "bias"):
            self.parameters.append(Parameter(f"{name}.{part}", (self.channels,), flops))

    def pool(self, padded: bool = True) -> None:
        """Pass a pooling, which halves the size."""
        self.size = -(-self.size // 2) if padded else (self.size - 3) // 2 + 1

    def connect(self, name: str, entering: int, leaving: int) -> None:
        """Append a fully connected layer with a bias, behind the maps."""
        self.parameters += linear(name, entering, leaving)


def linear(name: str, entering: int, leaving: int, tokens: int = 1) -> list[Parameter]:
    """Return weight and bias of a fully connected layer, which every token passes once."""
    weight = Parameter(f"{name}.weight", (leaving, entering), 2.0 * leaving * entering * tokens)
    return [weight, Parameter(f"{name}.bias", (leaving,), float(leaving * tokens))]
