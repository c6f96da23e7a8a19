"""Trainings with large gradients: data, networks, and learning rates to search."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from benchmarks.accuracy.data import Data, Text, bible, fashion
from benchmarks.accuracy.networks import TextLSTM

WINDOW = 24
"""Length of the language model's input, in words."""
PART = 0.25
"""Fraction of the test data on which the points of a curve are measured."""


@cache
def words() -> Text:
    """Load the King James Bible as numbers of 12,768 different words and punctuation marks."""
    verses = re.sub(r"^\S+ ", "", bible(), flags=re.MULTILINE)
    text = re.findall(r"[a-z]+(?:'[a-z]+)?|[.,;:?!]", verses.lower())
    return Text(np.unique(text, return_inverse=True)[1].astype(np.int64), WINDOW)


def perceptron() -> nn.Module:
    """Return a perceptron with layers of 784, 2048, 1664 and 10 units and 5,033,866 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 1664), nn.ReLU(),
        nn.Linear(1664, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    """Return three convolutions and wide linear layers as in VGG: 3,797,962 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One training."""

    title: str
    load: Callable[[], Data]
    network: Callable[[Any], nn.Module]  # of the data
    optimizer: str
    batch: int  # examples a step, of all hosts together
    steps: int
    rates: tuple[float, ...]  # a ladder; a search begins with the three in its middle
    parameters: int
    matrices: int  # tensors of more than one dimension
    is_loss: bool = False  # less is better
    epsilon: float = 1e-8  # of AdamW


def _ladder(middle: float) -> tuple[float, ...]:
    return tuple(middle * 2.0**step for step in range(-3, 4))


TASKS = {
    "perceptron": Task(
        "Fashion-MNIST, a perceptron of 5.0 million parameters", fashion,
        lambda _: perceptron(), "momentum", 32, 1500, _ladder(0.02), 5_033_866, 3,
    ),
    "words": Task(
        "words of the King James Bible, an LSTM of 8.0 million parameters", words,
        lambda data: TextLSTM(data.symbols, 288, 288), "adamw", 8, 500, _ladder(0.002),
        8_032_992, 4, is_loss=True,
    ),
    "vgg": Task(
        "Fashion-MNIST, convolutions with a wide head, 3.8 million parameters", fashion,
        lambda _: vgg(), "momentum", 16, 1500, _ladder(0.02), 3_797_962, 6,
    ),
}  # fmt: skip
TASKS["words_epsilon"] = replace(
    TASKS["words"], title=f"{TASKS['words'].title}, epsilon 3e-5 in AdamW", epsilon=3e-5
)
