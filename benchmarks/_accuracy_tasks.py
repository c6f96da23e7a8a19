"""What ``hvd-sparse bench accuracy`` trains: data, networks, learning rates to search."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

FASHION = Path("/usr/share/datasets/fashion-mnist")
Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Task:
    """One thing to learn.

    Attributes
    ----------
    load : train images and labels, test images and labels
    network : a new one, by torch's seed
    batch : examples a worker and step
    epochs : of a full run
    rates : by optimizer, those that a search tries, for dense and sparse alike
    """

    name: str
    load: Callable[[], Arrays]
    network: Callable[[], nn.Module]
    batch: int
    epochs: int
    rates: dict[str, tuple[float, ...]]


def load_digits() -> Arrays:
    """scikit-learn's 1,797 images of 8 x 8, split as the examples do."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    digits = load()
    images = (digits.images / 16).astype(np.float32)[:, None]
    split = train_test_split(
        images, digits.target, test_size=450, random_state=0, stratify=digits.target
    )
    return tuple(torch.from_numpy(split[i]) for i in (0, 2, 1, 3))  # type: ignore[return-value]


def load_fashion() -> Arrays:
    """60,000 and 10,000 images of 28 x 28, from Debian's package."""
    if not FASHION.is_dir():
        raise SystemExit(f"{FASHION} is not there: apt-get install dataset-fashion-mnist")
    train, test = (
        _idx(f"{part}-images-idx3-ubyte.gz").astype(np.float32)[:, None]
        for part in ("train", "t10k")
    )
    labels = [_idx(f"{part}-labels-idx1-ubyte.gz").astype(np.int64) for part in ("train", "t10k")]
    mean, std = train.mean(), train.std()
    images = [torch.from_numpy((each - mean) / std) for each in (train, test)]
    return images[0], torch.from_numpy(labels[0]), images[1], torch.from_numpy(labels[1])


def _idx(name: str) -> np.ndarray:
    """An array of the IDX format: two zeros, type and number of dimensions, sizes, bytes."""
    with gzip.open(FASHION / name) as file:
        content = file.read()
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def digits_network() -> nn.Module:
    """That of ``examples/pytorch_digits.py``: 71,914 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def fashion_network() -> nn.Module:
    """Two convolutions with strides and two layers: 103,018 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


TASKS = {
    "digits": Task(
        "digits", load_digits, digits_network, 32, 25,
        {"sgd": (0.1, 0.2, 0.4), "momentum": (0.025, 0.05, 0.1), "adamw": (0.0015, 0.003, 0.006)},
    ),
    "fashion_mnist": Task(
        "fashion_mnist", load_fashion, fashion_network, 32, 3,
        {"sgd": (0.1, 0.2, 0.4), "momentum": (0.025, 0.05, 0.1), "adamw": (0.003, 0.006, 0.012)},
    ),
}  # fmt: skip
