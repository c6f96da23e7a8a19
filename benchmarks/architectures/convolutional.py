"""ResNet-50, VGG-16 and Inception-v4, parameter by parameter."""

from __future__ import annotations

from benchmarks.architectures._parameters import Maps, Parameter

CLASSES = 1000


def resnet50(width: int = 64) -> list[Parameter]:
    """Return the parameters of ResNet-50 on 224 x 224 pixels (He et al. 2016, Tab. 1).

    At width 64 they are 161 tensors of 25,557,032 entries.
    """
    maps = Maps(3, 224)
    maps.convolve("layers.0", width, 7, stride=2)
    maps.normalise("layers.1")
    maps.pool()
    number = 4  # activation and pooling have places in the network, and nothing to learn
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            _bottleneck(maps, f"layers.{number}", width << stage, stride, projects=block == 0)
            number += 1
    maps.connect("fc", maps.channels, CLASSES)
    return maps.parameters


def _bottleneck(maps: Maps, name: str, inner: int, stride: int, *, projects: bool) -> None:
    entering = maps.channels
    maps.convolve(f"{name}.conv1", inner, 1)
    maps.normalise(f"{name}.bn1")
    maps.convolve(f"{name}.conv2", inner, 3, stride=stride)
    maps.normalise(f"{name}.bn2")
    maps.convolve(f"{name}.conv3", 4 * inner, 1)
    maps.normalise(f"{name}.bn3")
    if projects:
        maps.convolve(f"{name}.shortcut.0", 4 * inner, 1, entering=entering)
        maps.normalise(f"{name}.shortcut.1")


def vgg16() -> list[Parameter]:
    """Return the parameters of VGG-16 on 224 x 224 pixels.

    Simonyan and Zisserman 2015, configuration D: 32 tensors of 138,357,544 entries.
    """
    maps = Maps(3, 224)
    number = 0
    for channels, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            maps.convolve(f"features.{number}", channels, 3, bias=True)
            number += 2
        maps.pool()
        number += 1
    maps.connect("classifier.0", maps.channels * maps.size**2, 4096)
    maps.connect("classifier.2", 4096, 4096)
    maps.connect("classifier.4", 4096, CLASSES)
    return maps.parameters


Branch = tuple[tuple[int, "int | tuple[int, int]"], ...]
"""Convolutions one after the other: channels and kernel of each."""

BLOCK_A: tuple[Branch, ...] = (
    ((96, 1),),
    ((64, 1), (96, 3)),
    ((64, 1), (96, 3), (96, 3)),
    ((96, 1),),
)
BLOCK_B: tuple[Branch, ...] = (
    ((384, 1),),
    ((192, 1), (224, (1, 7)), (256, (7, 1))),
    ((192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
    ((128, 1),),
)
REDUCTION_A: tuple[Branch, ...] = (((384, 3),), ((192, 1), (224, 3), (256, 3)))
REDUCTION_B: tuple[Branch, ...] = (
    ((192, 1), (192, 3)),
    ((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3)),
)


def inception_v4() -> list[Parameter]:
    """Return the parameters of Inception-v4 on 299 x 299 pixels.

    Szegedy et al. 2017, Fig. 3 to 9: 449 tensors of 42,679,816 entries.
    """
    maps = Maps(3, 299)
    _stem(maps)
    for number in range(4):
        _block(maps, f"a{number}", BLOCK_A)
    _reduce(maps, "reduction_a", REDUCTION_A)
    for number in range(7):
        _block(maps, f"b{number}", BLOCK_B)
    _reduce(maps, "reduction_b", REDUCTION_B)
    for number in range(3):
        _block_c(maps, f"c{number}")
    maps.connect("fc", maps.channels, CLASSES)
    return maps.parameters


def _unit(
    maps: Maps,
    name: str,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    entering: int | None = None,
    stride: int = 1,
    padded: bool = True,
) -> None:
    """Pass a convolution and a normalisation."""
    maps.convolve(f"{name}.conv", channels, kernel, entering=entering, stride=stride, padded=padded)
    maps.normalise(f"{name}.bn")


def _stem(maps: Maps) -> None:
    _unit(maps, "stem.0", 32, 3, stride=2, padded=False)
    _unit(maps, "stem.1", 32, 3, padded=False)
    _unit(maps, "stem.2", 64, 3)
    _unit(maps, "stem.3", 96, 3, stride=2, padded=False)  # beside a pooling of the 64
    entering, size = 64 + 96, maps.size
    _unit(maps, "stem.4.0.0", 64, 1, entering=entering)
    _unit(maps, "stem.4.0.1", 96, 3, padded=False)
    maps.size = size
    _unit(maps, "stem.4.1.0", 64, 1, entering=entering)
    _unit(maps, "stem.4.1.1", 64, (1, 7))
    _unit(maps, "stem.4.1.2", 64, (7, 1))
    _unit(maps, "stem.4.1.3", 96, 3, padded=False)
    # beside a pooling of the 192
    _unit(maps, "stem.5", 192, 3, entering=2 * 96, stride=2, padded=False)
    maps.channels = 2 * 192


def _block(maps: Maps, name: str, branches: tuple[Branch, ...]) -> None:
    """Pass branches side by side, whose outputs are joined."""
    entering = maps.channels
    for number, branch in enumerate(branches):
        maps.channels = entering
        for depth, (channels, kernel) in enumerate(branch):
            _unit(maps, f"{name}.{number}.{depth}", channels, kernel)
    maps.channels = sum(branch[-1][0] for branch in branches)


def _reduce(maps: Maps, name: str, branches: tuple[Branch, ...]) -> None:
    """Pass branches that end in a convolution of stride 2, and a pooling beside them."""
    entering, size = maps.channels, maps.size
    for number, branch in enumerate(branches):
        maps.channels, maps.size = entering, size
        for depth, (channels, kernel) in enumerate(branch[:-1]):
            _unit(maps, f"{name}.{number}.{depth}", channels, kernel)
        channels, kernel = branch[-1]
        _unit(maps, f"{name}.{number}.{len(branch) - 1}", channels, kernel, stride=2, padded=False)
    maps.channels = entering + sum(branch[-1][0] for branch in branches)


def _block_c(maps: Maps, name: str) -> None:
    """Pass branches that fork at their ends."""
    entering = maps.channels
    _unit(maps, f"{name}.0", 256, 1)
    _unit(maps, f"{name}.1.0", 384, 1, entering=entering)
    _unit(maps, f"{name}.1.1", 256, (1, 3), entering=384)
    _unit(maps, f"{name}.1.2", 256, (3, 1), entering=384)
    _unit(maps, f"{name}.2.0", 384, 1, entering=entering)
    _unit(maps, f"{name}.2.1", 448, (3, 1))
    _unit(maps, f"{name}.2.2", 512, (1, 3))
    _unit(maps, f"{name}.2.3", 256, (1, 3), entering=512)
    _unit(maps, f"{name}.2.4", 256, (3, 1), entering=512)
    _unit(maps, f"{name}.3", 256, 1, entering=entering)
    maps.channels = 6 * 256
