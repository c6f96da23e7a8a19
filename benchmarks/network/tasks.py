"""Trainings whose gradients fill a wire: data, networks, and learning rates to search."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.accuracy.data import Data, bible, fashion

WINDOW = 24
"""Words that the language model reads at a time."""
HELD_OUT = 512
"""Windows, from the last twentieth of the text, that are for scoring alone."""
PART = 0.25
"""How much of the test data a point of a curve is scored on."""


class Words:
    """The King James Bible in words and marks.  Scored by the loss of the next word in nats."""

    def __init__(self) -> None:
        verses = re.sub(r"^\S+ ", "", bible(), flags=re.MULTILINE)
        text = re.findall(r"[a-z]+(?:'[a-z]+)?|[.,;:?!]", verses.lower())
        self.vocabulary, codes = np.unique(text, return_inverse=True)
        whole = torch.from_numpy(codes.astype(np.int64))
        held = len(whole) // 20
        self._train, rest = whole[:-held], whole[-held:]
        first = torch.linspace(0, held - WINDOW - 1, HELD_OUT).long()
        self._held = rest[first[:, None] + torch.arange(WINDOW + 1)]

    def draw(self, seed: int, step: int, size: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(1_000_003 * seed + step)
        return torch.randint(len(self._train) - WINDOW, (size,), generator=drawn)

    def loss(self, network: nn.Module, chosen: torch.Tensor) -> torch.Tensor:
        return _next_word(network, self._train[chosen[:, None] + torch.arange(WINDOW + 1)])

    @torch.no_grad()
    def score(self, network: nn.Module, part: float = 1.0) -> float:
        parts = self._held[:: round(1 / part)].split(32)
        return float(np.mean([float(_next_word(network, windows)) for windows in parts]))


def _next_word(network: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    return cross_entropy(network(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def perceptron() -> nn.Module:
    """Return 784-2048-1664-10: 5,033,866 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 1664), nn.ReLU(),
        nn.Linear(1664, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    """Return three convolutions with the wide head of VGG: 3,797,962 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


class WordLstm(nn.Module):
    def __init__(self, words: int, width: int = 288) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(self.lstm(self.embedding(words))[0])
        return logits


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes
    ----------
    title : in words
    load : its data
    network : a new network for the data, by torch's seed
    optimizer : "momentum" or "adamw"
    batch : examples of a step on all hosts together, so that dense is one training on any number
        of hosts; small, as strong scaling leaves them
    steps : of a full run
    rates : a ladder of learning rates; a search begins with the three in its middle
    parameters : of the network
    matrices : its tensors of more than one dimension, which are compressed
    is_loss : the score is a loss, of which less is better
    """

    title: str
    load: Callable[[], Data]
    network: Callable[[Any], nn.Module]
    optimizer: str
    batch: int
    steps: int
    rates: tuple[float, ...]
    parameters: int
    matrices: int
    is_loss: bool = False


def _ladder(middle: float) -> tuple[float, ...]:
    return tuple(middle * 2.0**step for step in range(-3, 4))


TASKS = {
    "perceptron": Task(
        "Fashion-MNIST, a perceptron of 5.0 million parameters", fashion,
        lambda _: perceptron(), "momentum", 32, 1500, _ladder(0.02), 5_033_866, 3,
    ),
    "words": Task(
        "words of the King James Bible, an LSTM of 8.0 million parameters", cache(Words),
        lambda data: WordLstm(len(data.vocabulary)), "adamw", 8, 1500, _ladder(0.002), 8_032_992, 4,
        is_loss=True,
    ),
    "vgg": Task(
        "Fashion-MNIST, convolutions with a wide head, 3.8 million parameters", fashion,
        lambda _: vgg(), "momentum", 16, 1500, _ladder(0.02), 3_797_962, 6,
    ),
}  # fmt: skip
