"""The baselines of the network bench select and keep what their descriptions say."""

from __future__ import annotations

import math
import random

import pytest
import torch

pytest.importorskip(
    "horovod.torch", reason="the baselines are written over Horovod", exc_type=ImportError
)


from benchmarks.network.methods import Dgc, TopK
from benchmarks.network.spans import Spans
from benchmarks.network.summary import ratio

DENSITY = 0.01


def named(*shapes):
    return [(f"p{i}", torch.nn.Parameter(torch.zeros(shape))) for i, shape in enumerate(shapes)]


def laplace(numel, seed):
    torch.manual_seed(seed)
    return torch.distributions.Laplace(0.0, 1.0).sample((numel,))


def after(method, position, *gradients):
    """Values and indices of the last of these steps."""
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


@pytest.mark.parametrize("numel", [150, 10_000, 300_000])
def test_dgc_never_sends_more_than_asked_and_at_least_the_largest(numel):
    random.seed(3)
    method = Dgc(named((numel, 1)), DENSITY, Spans(), "d")
    _, indices = after(method, 0, laplace(numel, 4))
    assert 1 <= indices.numel() <= math.ceil(numel * DENSITY)
    if numel > 2 / DENSITY:
        assert indices.numel() >= 0.5 * numel * DENSITY
    assert indices.unique().numel() == indices.numel()


def test_dgc_corrects_momentum_and_masks_what_it_sent():
    method = Dgc(named((200, 50)), DENSITY, Spans(), "d")
    first, second = laplace(10_000, 5), laplace(10_000, 6)
    _, indices = after(method, 0, first)
    momentum, velocity = first.clone(), first.clone()
    momentum[indices] = velocity[indices] = 0.0
    assert torch.equal(method.velocities[0], velocity)
    values, indices = after(method, 0, second)
    momentum = 0.9 * momentum + second
    torch.testing.assert_close(values, (velocity + momentum)[indices])
    assert not method.momenta[0][indices].any()


def test_dgc_leaves_vectors_dense():
    method = Dgc(named((5000,)), DENSITY, Spans(), "d")
    assert method.select(0, laplace(5000, 7)) is None


def test_a_phase_inside_another_is_taken_out_of_it():
    spans = Spans()
    with spans.phase("decode"):
        before = spans.seconds["decode"]
        with spans.phase("send"):
            torch.randn(300_000).sort()
        assert spans.seconds["decode"] - before < spans.seconds["send"]


def test_ratios_are_taken_within_a_round():
    rows = [
        {"method": m, "round": r, "total": t}
        for r, pair in enumerate([(2, 1), (40, 10)])
        for m, t in zip("ab", pair)
    ]
    assert ratio(rows, "a", "b") == {"median": 3.0, "low": 2.0, "high": 4.0}
