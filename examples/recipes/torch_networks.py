"""Networks of the papers in PyTorch: ResNet-20 and VGG-16 for CIFAR-10, ResNet-50, an LSTM."""

import torch
from torch import nn

from recipes.shapes import VGG16


def convolution(entering, leaving, size, stride=1):
    """Return a convolution without bias, and a batch normalisation."""
    conv = nn.Conv2d(entering, leaving, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(leaving)]


class Residual(nn.Module):
    """A residual block, which adds the input (or its shortcut) to the output of the layers."""

    def __init__(self, layers, shortcut):
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), shortcut

    def forward(self, x):
        return torch.relu(self.layers(x) + self.shortcut(x))


class Halved(nn.Module):
    """A shortcut without parameters: keep every second pixel, and fill new channels with 0."""

    def __init__(self, added):
        super().__init__()
        self.added = added

    def forward(self, x):
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def resnet20(classes=10):
    """Return ResNet-20 for images of 32 x 32, with 269,722 parameters for 10 classes."""
    layers = [*convolution(3, 16, 3), nn.ReLU()]
    entering = 16
    for leaving in (16, 32, 64):
        for _ in range(3):
            stride = 1 if leaving == entering else 2
            shortcut = nn.Identity() if stride == 1 else Halved(leaving - entering)
            inner = convolution(entering, leaving, 3, stride)
            layers.append(
                Residual([*inner, nn.ReLU(), *convolution(leaving, leaving, 3)], shortcut)
            )
            entering = leaving
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def vgg16(classes=10):
    """Return VGG-16 for images of 32 x 32, with normalisation and one fully connected layer."""
    layers, entering = [], 3
    for leaving in VGG16:
        if leaving:
            layers += [*convolution(entering, leaving, 3), nn.ReLU()]
            entering = leaving
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, classes))


def resnet50(classes=1000):
    """Return ResNet-50, with 25,557,032 parameters for 1,000 classes.

    The blocks that halve an image do so in their 3 x 3 convolution.
    """
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    entering = 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            stride = 2 if number == 0 and inner > 64 else 1
            layers.append(_bottleneck(entering, inner, stride, projects=number == 0))
            entering = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def _bottleneck(entering, inner, stride, *, projects):
    layers = [*convolution(entering, inner, 1), nn.ReLU()]
    layers += [*convolution(inner, inner, 3, stride), nn.ReLU(), *convolution(inner, 4 * inner, 1)]
    nn.init.zeros_(layers[-1].weight)  # so that every block begins as the identity
    shortcut = nn.Identity()
    if projects:
        shortcut = nn.Sequential(*convolution(entering, 4 * inner, 1, stride))
    return Residual(layers, shortcut)


class Language(nn.Module):
    """An embedding, an LSTM of two layers, and a layer of logits, with dropout in between.

    The LSTM's state is kept from one window of words to the next. Gradients end at a window's
    beginning.
    """

    def __init__(self, vocabulary, width=1500, dropout=0.65):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=dropout, batch_first=True)
        self.logits = nn.Linear(width, vocabulary)
        self.state = None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.04, 0.04)

    def forget(self):
        """Reset the state, because a new text begins."""
        self.state = None

    def forward(self, words):
        hidden, state = self.lstm(self.dropout(self.embedding(words)), self.state)
        self.state = tuple(each.detach() for each in state)
        return self.logits(self.dropout(hidden)).flatten(0, 1)
