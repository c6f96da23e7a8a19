"""Tasks of the accuracy benchmark: data, networks, optimizers, and learning rates to search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.accuracy import data, networks
from benchmarks.accuracy.muon import SingleDeviceMuonWithAuxAdam, groups_of

WEIGHT_DECAY, MOMENTUM = 0.01, 0.9
"""Weight decay of AdamW (torch's default), and momentum of SGD."""
WORKERS = 4


@dataclass(frozen=True)
class Task:
    """One task."""

    title: str
    words: str
    load: Callable[[], data.Data]
    network: Callable[[], nn.Module]
    batch: int  # examples a step, of all workers together
    steps: int
    rates: dict[str, float]  # by optimizer, the middle of a ladder
    is_text: bool = True  # scored by a loss; else by accuracy


TASKS = {
    "gpt": Task(
        "Small GPT", "Characters of the King James Bible; two blocks of four heads, 64 wide",
        data.scripture, networks.SmallGPT, 16, 1200,
        {"adamw": 0.004, "momentum": 0.2, "muon": 0.004},
    ),
    "fashion_mnist": Task(
        "Fashion-MNIST", "Images of ten kinds of clothing; two convolutions and two layers",
        data.fashion, networks.fashion_network, 64, 1200,
        {"momentum": 0.05, "adamw": 0.002}, is_text=False,
    ),
    "lstm": Task(
        "LSTM", "The same text; one layer of 192 units",
        data.scripture, networks.TextLSTM, 16, 1200, {"adamw": 0.008, "momentum": 1.0},
    ),
    "digits": Task(
        "Digits", "scikit-learn's digits; two convolutions and two layers",
        data.digits, networks.digits_network, 64, 525, {"momentum": 0.05}, is_text=False,
    ),
    "large_gpt": Task(
        "Larger GPT", "The same text; three blocks of six heads, 192 wide",
        data.scripture, partial(networks.SmallGPT, 192, 3, 6), 8, 600,
        {"adamw": 0.002, "momentum": 0.1, "muon": 0.002},
    ),
}  # fmt: skip


def make_optimizer(name: str, network: nn.Module, rate: float) -> torch.optim.Optimizer:
    if name == "muon":
        return SingleDeviceMuonWithAuxAdam(groups_of(network, rate, WEIGHT_DECAY))
    if name == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    return torch.optim.SGD(network.parameters(), lr=rate, momentum=MOMENTUM)
