"""Tools of the cases of DistributedDataParallel, and models with given gradients."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Gradients = Mapping[str, np.ndarray]
SMALL_BUCKETS = {"bucket_cap_mb": 0.002}
"""Option for small buckets. In the first pass, DDP has one bucket with all parameters; later
buckets have a few hundred entries each."""


class Chosen(nn.Module):
    """A model of zeros, whose gradients are exactly those in its input.

    transposed : the entries of a parameter are in memory in the order of its transpose
    """

    def __init__(self, shapes, dtype, transposed=False):
        super().__init__()
        for name, shape in shapes.items():
            zeros = torch.zeros(shape, dtype=dtype)
            if transposed:
                zeros = zeros.mT.contiguous().mT if zeros.dim() > 1 else zeros
            self.register_parameter(name, nn.Parameter(zeros))

    def forward(self, gradients):
        named = dict(self.named_parameters())
        return sum(
            (named[name] * torch.from_numpy(gradient).to(named[name].dtype)).sum()
            for name, gradient in gradients.items()
        )


def chosen(shapes, dtype=torch.float32, transposed=False, **options):
    return DistributedDataParallel(Chosen(shapes, dtype, transposed), **options)


def network(dtype=torch.float32):
    torch.manual_seed(5)
    layers = (nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4))
    return nn.Sequential(*layers).to(dtype)


def loss_of(model, step, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs = torch.randn(16, 12, generator=draw).to(dtype)
    return nn.functional.mse_loss(model(inputs), inputs[:, :4].roll(1, dims=1))


def are_alike(value):
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return all(each == value for each in told)


def summed(array):
    total = torch.from_numpy(np.asarray(array, np.float64).copy())
    dist.all_reduce(total)
    return total.numpy()
