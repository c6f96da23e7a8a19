"""The baselines of ``bench select`` select what their papers say."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the baselines are written in torch")

from benchmarks._peers import PEERS, Peer  # noqa: E402 - it imports torch

BANDS = {"torch.topk": (1, 1), "DGC, sampled threshold": (0.8, 1), "Gaussian-k": (2 / 3, 4 / 3)}
"""Counts over k on a normal vector, for which the rules are made."""


@pytest.mark.parametrize("density", [0.001, 0.01])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_sends_as_many_entries_as_its_paper_says(name, density):
    drawn = np.random.default_rng(3).standard_normal(200_000)
    x = torch.from_numpy(drawn.astype(np.float32))
    k = int(x.numel() * density)
    indices = PEERS[name]().choose(x, k)
    low, high = BANDS[name]
    assert low * k <= indices.numel() <= high * k
    assert len(set(indices.tolist())) == indices.numel()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_loses_nothing(name):
    residual, expected = torch.zeros(50_000), torch.zeros(50_000)
    peer = Peer(PEERS[name](), residual, 0.01)
    for step in range(4):
        drawn = np.random.default_rng(step).laplace(size=50_000)
        gradient = torch.from_numpy(drawn.astype(np.float32))
        expected.add_(gradient)
        indices, values = peer.step(gradient)
        assert indices.dtype == torch.int32
        assert torch.equal(values, expected[indices.long()])
        expected[indices.long()] = 0
        assert torch.equal(peer.residual, expected)
