"""The baselines of the network bench select and keep what their descriptions say."""

import pytest
import torch

pytest.importorskip("horovod.torch", reason="the baselines use Horovod", exc_type=ImportError)

from benchmarks.network.methods import Dgc, TopK
from benchmarks.network.spans import Spans

DENSITY = 0.01


def named(*shapes):
    return [(f"p{i}", torch.nn.Parameter(torch.zeros(shape))) for i, shape in enumerate(shapes)]


def laplace(numel, seed):
    torch.manual_seed(seed)
    return torch.distributions.Laplace(0.0, 1.0).sample((numel,))


def after(method, position, *gradients):
    for gradient in gradients:
        chosen = method.select(position, gradient)
    assert chosen is not None
    return chosen


def test_top_k_takes_the_largest_and_keeps_the_rest_exactly():
    method = TopK(named((100, 100)), DENSITY, Spans(), "t")
    first, second = laplace(10_000, 1), laplace(10_000, 2)
    values, indices = after(method, 0, first)
    kept = first.clone()
    kept[indices] = 0.0
    assert indices.numel() == 100
    assert values.abs().min() >= kept.abs().max()
    assert torch.equal(method.residuals[0], kept)
    values, indices = after(method, 0, second)
    assert torch.equal(values, (kept + second)[indices])


def test_dgc_corrects_momentum_and_masks_what_it_sent():
    method = Dgc(named((200, 50), (5000,)), DENSITY, Spans(), "d")
    first, second = laplace(10_000, 5), laplace(10_000, 6)
    _, indices = after(method, 0, first)
    assert 50 <= indices.numel() <= 100
    assert method.select(1, laplace(5000, 7)) is None  # vectors go dense
    momentum, velocity = first.clone(), first.clone()
    momentum[indices] = velocity[indices] = 0.0
    assert torch.equal(method.velocities[0], velocity)
    values, indices = after(method, 0, second)
    momentum = 0.9 * momentum + second
    torch.testing.assert_close(values, (velocity + momentum)[indices])
    assert not method.momenta[0][indices].any()
