"""The models that compute really; ``benchmarks.architectures`` has their layer
sizes, and of more models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 10_000
TOKENS = 64


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.bn1(self.conv1(maps)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        return functional.relu(self.bn3(self.conv3(inner)) + self.shortcut(maps))


class ResNet50(nn.Module):
    """He et al. 2016, Tab. 1: 25,557,032 parameters in 161 tensors."""

    sample = (1, 3, 224, 224)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        ]
        layers.append(nn.MaxPool2d(3, 2, padding=1))
        channels = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = 4 * width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layers(images).mean((2, 3)))


class Vgg16(nn.Module):
    """Simonyan and Zisserman 2015, configuration D: 138,357,544 parameters in 32 tensors."""

    sample = (1, 3, 224, 224)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096),
            nn.ReLU(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, 1000),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


class LanguageLstm(nn.Module):
    """Zaremba et al. 2014, the large model: 2 layers of 1,500, a softmax over 10,000 words;
    66,034,000 parameters."""

    sample = (4, 20)

    def __init__(self, width: int = 1500) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(width, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.embedding(words))[0])


class SmallTransformer(nn.Module):
    """Six encoder layers of width 256 with a softmax over 10,000 words; 9,884,944 parameters."""

    sample = (4, TOKENS)

    def __init__(self, width: int = 256, depth: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(TOKENS, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(self.embedding(words) + self.positions))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": ResNet50,
    "vgg16": Vgg16,
    "lstm": LanguageLstm,
    "transformer": SmallTransformer,
}


def loss(model: nn.Module, rng: torch.Generator) -> torch.Tensor:
    """Return the loss of a batch of random inputs and targets: real work, with nothing to learn."""
    sample: tuple[int, ...] = model.sample  # type: ignore[assignment]
    if len(sample) == 2:
        logits = model(torch.randint(VOCABULARY, sample, generator=rng))
    else:
        logits = model(torch.randn(sample, generator=rng))
    targets = torch.randint(logits.shape[-1], logits.shape[:-1], generator=rng)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
