"""Three small models (a CNN, a character LSTM, a transformer), with data of Python or scikit-learn.

The characters are the source text of a few modules of Python's standard library that rarely change.
Their exact bytes depend on the Python version, and so do the gradients, slightly.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

CORPUS = (
    "argparse",
    "calendar",
    "cmd",
    "difflib",
    "fractions",
    "heapq",
    "optparse",
    "pprint",
    "shlex",
    "textwrap",
)
VOCABULARY = 128
WINDOW = 48


@dataclass(frozen=True)
class Task:
    """A model, its data, and the settings of its training.

    Attributes
    ----------
    model : returns logits [..., classes] for the inputs of a batch
    batch : draws inputs and targets with a generator of random numbers
    learning_rate : of plain SGD
    clip_norm : upper bound of the gradient's L2 norm over all parameters; None for no bound
    """

    model: nn.Module
    batch: Callable[[np.random.Generator], tuple[torch.Tensor, torch.Tensor]]
    learning_rate: float
    clip_norm: float | None = None

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(inputs)
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class Cnn(nn.Module):
    """Two convolutions and two fully connected layers, for 8 x 8 images."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.fc1 = nn.Linear(2 * channels * 16, hidden)
        self.fc2 = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = functional.relu(self.conv2(functional.relu(self.conv1(images))))
        return self.fc2(functional.relu(self.fc1(functional.max_pool2d(maps, 2).flatten(1))))


class CharacterLstm(nn.Module):
    def __init__(self, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, VOCABULARY)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(characters))[0])


class CausalTransformer(nn.Module):
    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, VOCABULARY)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(WINDOW), persistent=False
        )

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        return self.decoder(
            self.encoder(self.embedding(characters) + self.positions, self.mask, is_causal=True)
        )


def corpus() -> np.ndarray:
    """The modules' text as int64 [characters]; other characters than ASCII become "?"."""
    text = []
    for name in CORPUS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(
                f"the source of Python's {name!r} is not installed; it is part of the corpus"
            )
        text.append(Path(spec.origin).read_text(encoding="utf-8").encode("ascii", "replace"))
    return np.frombuffer(b"\n".join(text), np.uint8).astype(np.int64)


def _text_batches(size: int) -> Callable[[np.random.Generator], tuple[torch.Tensor, torch.Tensor]]:
    characters = corpus()

    def batch(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        starts = rng.integers(0, characters.size - WINDOW - 1, size)
        windows = torch.from_numpy(characters[starts[:, None] + np.arange(WINDOW + 1)])
        return windows[:, :-1], windows[:, 1:]

    return batch


def _digit_batches(size: int) -> Callable[[np.random.Generator], tuple[torch.Tensor, torch.Tensor]]:
    digits = load_digits()
    images = torch.from_numpy((digits.images / 16.0).astype(np.float32))[:, None]
    labels = torch.from_numpy(digits.target.astype(np.int64))

    def batch(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(rng.integers(0, len(labels), size))
        return images[chosen], labels[chosen]

    return batch


def small_tasks() -> dict[str, Callable[[], Task]]:
    """Return the tasks by name. Their tensors have a few thousand entries."""
    return {
        "cnn": lambda: Task(Cnn(16, 32), _digit_batches(32), learning_rate=0.1),
        "lstm": lambda: Task(
            CharacterLstm(32, 64), _text_batches(16), learning_rate=1.0, clip_norm=1.0
        ),
        "transformer": lambda: Task(
            CausalTransformer(48), _text_batches(16), learning_rate=0.3, clip_norm=1.0
        ),
    }
