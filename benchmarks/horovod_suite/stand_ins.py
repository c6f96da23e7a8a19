"""What stands in for packages and data that the programs want, and that are not here.

Nothing is downloaded: digits and pictures are made up, small, and the same on all ranks.  What a
program is told by each:

* torchvision: ``datasets.MNIST`` and ``ImageFolder`` of made-up pictures, transforms that keep
  sizes small, and ``models.resnet50`` as this repository's examples have it
* tensorflow: ``keras.datasets.mnist.load_data`` gives made-up digits; ``keras`` is Keras 2, as it
  was when Horovod 0.28.1 was released
* mock, parameterized, tqdm: the few lines of them that the tests and examples use
"""

from __future__ import annotations

import importlib.util
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

DIGITS, PICTURES, SIDE = 512, 16, 32
"""Made-up digits of a training set, pictures of one, and the pixels of a picture's side."""


def digits(count: int = DIGITS) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up digits, uint8 [count, 28, 28], and their labels: a bright row each."""
    generator = np.random.default_rng(1)
    labels = np.arange(count) % 10
    pictures = generator.integers(0, 64, (count, 28, 28), dtype=np.uint8)
    pictures[np.arange(count), 4 + 2 * labels] += 160
    return pictures, labels.astype(np.uint8)


def install() -> list[str]:
    """Put the stand-ins in the place of what is not here; return what was replaced."""
    makers = {
        "mock": lambda: [unittest.mock],
        "parameterized": _parameterized,
        "torchvision": _torchvision,
        "tqdm": _tqdm,
    }
    missing = [name for name in makers if importlib.util.find_spec(name) is None]
    for name in missing:
        whole, *parts = makers[name]()
        sys.modules[name] = whole
        sys.modules.update({part.__name__: part for part in parts})
    return missing


def forget_newer_optimizers() -> None:
    """Keep from tests that try all of torch's optimizers those that came after Horovod 0.28.1 and
    take matrices alone."""
    import torch

    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "newer"


def install_keras_2() -> None:
    """Make ``keras`` Keras 2, and its digits made-up ones."""
    import tensorflow as tf
    import tf_keras

    sys.modules["keras"] = tf_keras

    def load_data(path: str = "") -> tuple[Any, Any]:
        return digits(), digits(64)

    for keras in (tf_keras, tf.keras):  # two trees of modules, over the same functions
        keras.datasets.mnist.load_data = load_data


def _module(name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)  # torch asks for it
    vars(made).update(contents)
    return made


def _parameterized() -> list[ModuleType]:
    """``parameterized.expand`` of a list of lists of arguments, in a class's body."""

    def expand(rows: list[list[Any]]) -> Callable[[Any], None]:
        def put(function: Any) -> None:
            place = sys._getframe(1).f_locals
            for number, row in enumerate(rows):

                def test(self: Any, row: list[Any] = row) -> Any:
                    return function(self, *row)

                place[f"{function.__name__}_{number}"] = test

        return put

    return [_module("parameterized", parameterized=_module("parameterized", expand=expand))]


class _Progress:
    """A bar that shows nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def update(self, _: int) -> None:
        """Show nothing."""

    def set_postfix(self, _: dict[str, float]) -> None:
        """Show nothing."""


def _tqdm() -> list[ModuleType]:
    return [_module("tqdm", tqdm=_Progress)]


def _torchvision() -> list[ModuleType]:
    import torch

    class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
        """Pictures that are tensors already; float32 [channels, side, side], and a label."""

        def __init__(self, pictures: np.ndarray, labels: np.ndarray) -> None:
            self._pictures = torch.from_numpy(pictures.astype(np.float32) / 255 - 0.1)
            self._labels = labels.tolist()

        def __len__(self) -> int:
            return len(self._labels)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self._pictures[index], self._labels[index]

    def mnist(_: str, train: bool = True, **__: Any) -> Pictures:
        pictures, labels = digits(DIGITS if train else 128)
        return Pictures(pictures[:, None], labels)

    def folder(_: str, **__: Any) -> Pictures:
        shape = (PICTURES, 3, SIDE, SIDE)
        pictures = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
        return Pictures(pictures, np.arange(PICTURES) % 2)

    names = "Compose ToTensor Normalize RandomResizedCrop RandomHorizontalFlip Resize CenterCrop"
    transforms = {name: lambda *_, **__: None for name in names.split()}
    parts = [
        _module("torchvision.datasets", MNIST=mnist, ImageFolder=folder),
        _module("torchvision.transforms", **transforms),
        _module("torchvision.models", resnet50=_resnet50),
    ]
    whole = {part.__name__.rpartition(".")[2]: part for part in parts}
    return [_module("torchvision", **whole), *parts]


def _resnet50() -> Any:
    """Make the network of this repository's examples, whose parts lie beside them."""
    from benchmarks._limited import ROOT

    sys.path.insert(0, str(ROOT / "examples"))
    from recipes.torch_networks import resnet50

    sys.path.remove(str(ROOT / "examples"))  # whose modules are called as Horovod's are
    return resnet50(1000)


def names_of(modules: list[str]) -> Iterator[str]:
    """Yield the sentences that the page has of what was replaced."""
    yield "made-up digits and pictures in the place of MNIST and ImageNet"
    yield "torch's Muon, newer and for matrices alone, is hidden from tests that try all optimizers"
    if modules:
        yield f"stand-ins for {', '.join(sorted(modules))}, which are not installed"
