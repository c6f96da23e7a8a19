"""Networks of the accuracy benchmark, small enough for a run of about a minute."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.accuracy.data import WINDOW

CHARACTERS = 96
"""Largest number of different characters of a text."""


def digits_network() -> nn.Module:
    """Return a network as in ``examples/pytorch_digits.py``, but with 128 in place of 512 hidden
    units: 71,754 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def fashion_network() -> nn.Module:
    """Return two convolutions with strides and two linear layers: 478,766 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(1568, 300), nn.ReLU(), nn.Linear(300, 10),
    )  # fmt: skip


class TextLSTM(nn.Module):
    def __init__(self, symbols: int = CHARACTERS, width: int = 64, units: int = 192) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, units, batch_first=True)
        self.head = nn.Linear(units, symbols)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        guesses: torch.Tensor = self.head(self.lstm(self.embedding(text))[0])
        return guesses


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_layers = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        added: torch.Tensor = self.layers(self.before_layers(x))
        return x + added


class SmallGPT(nn.Module):
    def __init__(self, width: int = 64, blocks: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.characters(characters) + self.positions.weight[: characters.shape[1]]
        guesses: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return guesses
