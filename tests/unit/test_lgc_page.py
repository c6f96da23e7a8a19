"""The page of LGC: what its autoencoder sends, and how bytes are counted."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the autoencoder is written in it")

import torch

from benchmarks.lgc import page
from benchmarks.lgc.autoencoder import Learner, largest_of, padded

FOUND = {
    "workers": 4,
    "count": 100,
    "costs": [
        {"way": "float32", "bytes": 520, "error": 0.0, "s": 1e-5},
        {"way": "int2", "bytes": 145, "error": 0.25, "s": 2e-5},
        {"way": "lgc", "bytes": 112, "error": 0.5, "s": 3e-3},
    ],
    "scores": [{"way": "lgc", "score": 80.0}, {"way": "exact", "score": 81.0}],
}


def test_a_code_is_a_quarter_of_the_values_and_comes_back_in_their_length():
    learner, vectors = Learner(1), torch.randn(3, 50)
    code = learner.encode(vectors[0], 1.0)
    assert 4 * code.numel() == padded(vectors)[0].numel() == 64
    assert learner.decode(code, vectors[0], 1.0).shape == vectors[0].shape


def test_an_autoencoder_learns_what_can_be_learned():
    torch.manual_seed(0)
    learner, vectors = Learner(1), torch.sin(torch.arange(160) / 10.0).repeat(4, 1)

    def error() -> float:
        code = learner.encode(vectors[0], 1.0)
        back = learner.decode(code, vectors[0], 1.0)
        return float((back - vectors[0]).norm() / vectors[0].norm())

    before = error()
    for _ in range(100):
        learner.learn(vectors)
    assert error() < 0.2 < before


def test_the_innovation_is_the_largest_entries_as_they_are():
    assert largest_of(torch.tensor([[1.0, -3.0, 2.0]]), 2).tolist() == [[0.0, -3.0, 2.0]]


def test_rings_bring_a_share_and_gathered_messages_all_of_the_others():
    indices, ring = 520 - 400, 2 * 3 / 4
    assert page.received(FOUND, "scalecom") == indices + ring * 400
    assert page.received(FOUND, "lgc") == indices + ring * 112
    assert page.received(FOUND, "int2") == 3 * 145
    assert page.spared_s(FOUND, 1e9) == pytest.approx(8 * ring * 288 / 1e9)


def test_the_verdict_is_made_of_what_was_measured():
    told = page.verdict(FOUND)
    assert "3.0 ms a step" in told and "50% of the mean is lost" in told
    assert "80.0 % where exact values reach 81.0 %" in told
