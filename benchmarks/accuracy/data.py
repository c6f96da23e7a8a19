"""Data of the accuracy benchmark: images with labels, and text as characters."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")
WINDOW = 64
"""Length of the input of a network for text, in characters."""
HELD_OUT = 512
"""Number of held-out windows of text."""


class Images:
    """Images with labels, in a new random order in every epoch. The score is test accuracy in %."""

    def __init__(
        self, train: tuple[torch.Tensor, torch.Tensor], test: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        self._train = train
        self._test = test
        self._order: tuple[tuple[int, int], torch.Tensor] | None = None

    def draw(self, seed: int, step: int, size: int) -> torch.Tensor:
        """Return the indices of the examples of a step, in the order of the workers."""
        epoch, position = divmod(step, len(self._train[0]) // size)
        if self._order is None or self._order[0] != (seed, epoch):
            drawn = torch.Generator().manual_seed(1000 * seed + epoch)
            self._order = (seed, epoch), torch.randperm(len(self._train[0]), generator=drawn)
        return self._order[1][position * size : (position + 1) * size]

    def loss(self, network: nn.Module, chosen: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(network(self._train[0][chosen]), self._train[1][chosen])

    @torch.no_grad()
    def score(self, network: nn.Module, part: float = 1.0) -> float:
        """Return the score on the fraction ``part`` of the held-out data."""
        images, labels = (whole[: round(part * len(whole))] for whole in self._test)
        found = torch.cat([network(some).argmax(1) for some in images.split(500)])
        return 100.0 * int((found == labels).sum()) / len(labels)


class Text:
    """Text as a sequence of integers (codes). The score is the loss of predicting the next code, in
    nats.

    Parameters
    ----------
    codes : int64; the last twentieth is held out for the score
    window : number of codes that a network gets at a time
    """

    def __init__(self, codes: np.ndarray, window: int) -> None:
        self.symbols = int(codes.max()) + 1
        self._window = torch.arange(window + 1)
        whole = torch.from_numpy(codes)
        self._train, held = whole[: -(len(whole) // 20)], whole[-(len(whole) // 20) :]
        first = torch.linspace(0, len(held) - window - 1, HELD_OUT).long()
        self._held = held[first[:, None] + self._window]

    def draw(self, seed: int, step: int, size: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(1_000_003 * seed + step)
        return torch.randint(len(self._train) - len(self._window) + 1, (size,), generator=drawn)

    def loss(self, network: nn.Module, chosen: torch.Tensor) -> torch.Tensor:
        return _loss_of(network, self._train[chosen[:, None] + self._window])

    @torch.no_grad()
    def score(self, network: nn.Module, part: float = 1.0) -> float:
        parts = self._held[:: round(1 / part)].split(32)
        return float(np.mean([float(_loss_of(network, windows)) for windows in parts]))


Data = Images | Text
"""Data from which a task draws its examples."""


def _loss_of(network: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    guesses = network(windows[:, :-1])
    return nn.functional.cross_entropy(guesses.flatten(0, 1), windows[:, 1:].flatten())


@cache
def digits() -> Images:
    """Load scikit-learn's 1,797 images of 8 x 8, with the same split as in ``examples/``."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    loaded = load_digits()
    images = (loaded.images / 16).astype(np.float32)[:, None]
    split = train_test_split(
        images, loaded.target, test_size=450, random_state=0, stratify=loaded.target
    )
    train, test, train_labels, test_labels = map(torch.from_numpy, split)
    return Images((train, train_labels), (test, test_labels))


@cache
def fashion() -> Images:
    """Load Fashion-MNIST from Debian's package: 60,000 training and 10,000 test images."""
    if not FASHION.is_dir():
        raise SystemExit(f"{FASHION} is not there: apt-get install dataset-fashion-mnist")
    train, test = (
        _idx(f"{part}-images-idx3-ubyte.gz").astype(np.float32)[:, None]
        for part in ("train", "t10k")
    )
    labels = [_idx(f"{part}-labels-idx1-ubyte.gz").astype(np.int64) for part in ("train", "t10k")]
    mean, std = train.mean(), train.std()
    images = [torch.from_numpy((each - mean) / std) for each in (train, test)]
    return Images(
        (images[0], torch.from_numpy(labels[0])), (images[1], torch.from_numpy(labels[1]))
    )


def _idx(name: str) -> np.ndarray:
    """Return the array of an IDX file: two zeros, type, number of dimensions, sizes, and bytes."""
    with gzip.open(FASHION / name) as file:
        content = file.read()
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@cache
def bible() -> str:
    """Load the King James Bible from Debian's package: 4.4 MB of text with a verse in each line."""
    program = shutil.which("bible", path="/usr/bin:/usr/games:/usr/local/bin")
    if program is None:
        raise SystemExit("the program bible is not there: apt-get install bible-kjv")
    done = subprocess.run(
        [program, "-f", "Gen1:1-Rev22:21"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@cache
def scripture() -> Text:
    """Load the King James Bible as characters."""
    letters = np.frombuffer(bible().encode("utf-32-le"), np.uint32)
    return Text(np.unique(letters, return_inverse=True)[1].astype(np.int64), WINDOW)
