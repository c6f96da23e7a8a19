"""What ``scripts/bench accuracy`` trains: data, networks, and learning rates to search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from benchmarks import _accuracy_data as data
from benchmarks import _accuracy_networks as networks


@dataclass(frozen=True)
class Task:
    """One thing to learn.

    Attributes
    ----------
    load : its data
    network : a new one, by torch's seed
    batch : examples a step, of all workers together, so that dense is one training for any number
        of workers
    steps : of a full run
    rates : by optimizer, a ladder of learning rates; a search begins with the three in its middle,
        for dense and sparse alike
    is_text : scored by a loss, lower is better; else by accuracy
    """

    name: str
    load: Callable[[], data.Data]
    network: Callable[[], nn.Module]
    batch: int
    steps: int
    rates: dict[str, tuple[float, ...]]
    is_text: bool = False


def _ladder(middle: float) -> tuple[float, ...]:
    """Return seven rates, each twice the one before."""
    return tuple(middle * 2.0**step for step in range(-3, 4))


TASKS = {
    "digits": Task(
        "digits", data.digits, networks.digits_network, 64, 525,
        {"sgd": _ladder(0.2), "momentum": _ladder(0.05), "adamw": _ladder(0.003)},
    ),
    "fashion_mnist": Task(
        "fashion_mnist", data.fashion, networks.fashion_network, 64, 1200,
        {"sgd": _ladder(0.2), "momentum": _ladder(0.05), "adamw": _ladder(0.002)},
    ),
    "lstm": Task(
        "lstm", data.scripture, networks.CharacterLSTM, 16, 1200,
        {"sgd": _ladder(2.0), "momentum": _ladder(0.5), "adamw": _ladder(0.008)}, is_text=True,
    ),
    "gpt": Task(
        "gpt", data.scripture, networks.SmallGPT, 16, 1200,
        {"sgd": _ladder(0.4), "momentum": _ladder(0.1), "adamw": _ladder(0.004)}, is_text=True,
    ),
}  # fmt: skip
