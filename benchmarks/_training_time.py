"""What computing takes of a training step: forward and backward of the examples' networks."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hvd_sparse.types import TensorSpec

WORDS = 10_000
"""Of PTB's vocabulary."""
SHAPES = {"resnet20": (32, 3, 32, 32), "ptb": (5, 35), "resnet50": (32, 3, 224, 224)}
"""A rank's batch, where four ranks share the papers' of CIFAR-10 and PTB."""
LEAST_STEPS, LEAST_S = 4, 3.0


def _network(name: str) -> nn.Module:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from recipes import torch_networks

    made: nn.Module = {
        "resnet20": torch_networks.resnet20,
        "ptb": lambda: torch_networks.Language(WORDS),
        "resnet50": torch_networks.resnet50,
    }[name]()
    return made


def compressed_tensors(name: str) -> list[TensorSpec]:
    """Return the tensors of a network that are compressed."""
    named = [(key, tuple(each.shape)) for key, each in _network(name).named_parameters()]
    return [TensorSpec(key, shape, "float32") for key, shape in named if len(shape) > 1]


def computing_s(name: str) -> float:
    """Return the median processor seconds of a forward and a backward pass in one thread, on
    random inputs; the first pass does not count."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network, shape = _network(name), SHAPES[name]
    inputs = torch.randint(WORDS, shape) if name == "ptb" else torch.rand(shape)
    targets = inputs.flatten() if name == "ptb" else torch.randint(10, shape[:1])
    seconds: list[float] = []
    while len(seconds) <= LEAST_STEPS or sum(seconds) < LEAST_S:
        began_s = time.process_time()
        functional.cross_entropy(network(inputs), targets).backward()
        seconds.append(time.process_time() - began_s)
        network.zero_grad()
    return statistics.median(seconds[1:])
