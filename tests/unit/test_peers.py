"""The baselines of ``bench select`` choose what their papers say, or being faster than they are
would mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import recorded

from benchmarks._gradients import Gradients
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

torch = pytest.importorskip("torch", reason="the baselines are written in torch")

from benchmarks._peers import (  # noqa: E402 - it imports torch
    PEERS,
    DgcSampled,
    GaussianK,
    Peer,
    TopK,
)

BANDS = {
    "torch.topk": (1, 1),
    "DGC, sampled threshold": (0.8, 1),
    "Gaussian-k": (2 / 3, 4 / 3),
}
"""Counts over k on a normal vector, for which the rules are made."""


def drawn(numel: int = 200_000) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal(numel).astype(np.float32))


@pytest.mark.parametrize("density", [0.001, 0.01])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_sends_as_many_entries_as_its_paper_says(name, density):
    x = drawn()
    k = int(x.numel() * density)
    indices = PEERS[name]().choose(x, k)
    low, high = BANDS[name]
    assert low * k <= indices.numel() <= high * k
    assert len(set(indices.tolist())) == indices.numel()


def test_exact_top_k_is_exact():
    for vector in recorded():
        if (
            np.unique(np.abs(vector.values)).size == vector.values.size
        ):  # of equal magnitudes torch takes any
            k = max(1, int(vector.values.size * vector.density))
            indices = TopK().choose(torch.from_numpy(vector.values.copy()), k)
            assert (
                sorted(indices.tolist())
                == reference.take_largest(vector.values, k).indices.tolist()
            )


@pytest.mark.parametrize(
    "name", [name for name in PEERS if name != "DGC, sampled threshold"]
)  # it cuts by position
def test_what_is_sent_is_at_least_as_large_as_what_stays(name):
    x = drawn()
    indices = PEERS[name]().choose(x, 200)
    stays = torch.ones_like(x, dtype=torch.bool)
    stays[indices] = False
    assert x[indices].abs().min() >= x[stays].abs().max()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_loses_nothing(name):
    residual, expected = torch.zeros(50_000), torch.zeros(50_000)
    peer = Peer(PEERS[name](), residual, 0.01)
    for step in range(4):
        gradient = torch.from_numpy(
            np.random.default_rng(step).laplace(size=50_000).astype(np.float32)
        )
        expected.add_(gradient)
        indices, values = peer.step(gradient)
        assert indices.dtype == torch.int32
        assert torch.equal(values, expected[indices.long()])
        expected[indices.long()] = 0
        assert torch.equal(peer.residual, expected)


def test_dgc_repairs_a_sample_that_is_too_high_and_one_that_is_too_low():
    steps = torch.linspace(1, 2, 100_000)
    for rule in (DgcSampled(sample_density=0.0001), DgcSampled()):
        for k in (100, 1_000):
            assert 0.8 * k <= rule.choose(steps, k).numel() <= k
    many_equal = torch.ones(100_000)  # whatever the threshold, all of them or none
    assert DgcSampled().choose(many_equal, 1_000).numel() == 1_000


def test_gaussian_k_stops_after_three_rounds_wherever_it_is():
    heavy = torch.from_numpy(np.random.default_rng(5).laplace(size=200_000).astype(np.float32))
    assert GaussianK().choose(heavy, 2_000).numel() > 4 / 3 * 2_000


def test_the_steady_residual_is_near_the_one_that_many_steps_leave():
    density, numel = 0.01, 20_000
    gradients = Gradients.draw(numel, seed=1)
    configuration = Configuration.create(
        selector={"id": "topk", "density": density}, rollback=False
    )
    pipeline, thresholds = Pipeline(configuration, reference), {}
    for start, steps in (("steady", 40), ("zeros", 20), ("zeros", 1_000)):
        state = TensorState(TensorSpec("x", (numel,), "float32"), configuration)
        if start == "steady":
            state.memory.load({"residual": gradients.steady_residual(density, seed=2)})
        smallest = []
        for step in range(steps):
            sent = pipeline.send(state, gradients.at(step), 0, 1, dense=False).found.selection
            state.commit()
            smallest.append(np.abs(sent.values).min())
        thresholds[start, steps] = np.mean(smallest[-20:])
    settled = thresholds["zeros", 1_000]
    assert thresholds["steady", 40] == pytest.approx(settled, rel=0.05)
    assert thresholds["zeros", 20] < 0.8 * settled


def test_gradients_differ_from_step_to_step_and_are_aligned():
    gradients = Gradients.draw(100_000, seed=1)
    seen = [gradients.at(step) for step in range(8)]
    assert all(g.size == 100_000 and g.dtype == np.float32 and g.flags.c_contiguous for g in seen)
    assert len({g.tobytes() for g in seen}) == 8
    offsets = {
        (g.ctypes.data - gradients.arrays[step % 4].ctypes.data) % 64 for step, g in enumerate(seen)
    }
    assert offsets == {0}
    assert np.array_equal(gradients.at(3), gradients.at(3))
