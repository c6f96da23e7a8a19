"""Staleness: noting what leaves for later tells the same as looking at every step."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.step.tensor_state import BLOCK, EVERY, Departures


@pytest.mark.parametrize("first", [-1, 10**9])
@pytest.mark.parametrize("sizes", [[0], [1], [3], [200], [0, 300, 2], [1, 1, 1, 600]])
def test_many_steps_at_once_are_as_one_after_the_other(sizes, first):
    rng, numel = np.random.default_rng(sizes[0]), 1000
    departures = Departures(numel, first, 1)
    left_at = np.full(numel, first)
    for number, step in enumerate(range(first + 1, first + 1 + 300)):
        size = sizes[number % len(sizes)]
        indices = np.sort(rng.choice(numel, size, replace=False)).astype(np.uint32)
        if number % 97 == 0:
            wanted = int((step - left_at[indices]).sum())
            assert departures.waited(indices, step) == wanted, step
        departures.note(step, indices)
        if number % 5 == 0:  # taken back, and done again with others
            departures.drop(step)
            indices = indices[::2].copy()
            departures.note(step, indices)
        departures.drop(step - 1)  # which is over
        left_at[indices] = step
    everything = np.arange(numel, dtype=np.uint32)
    assert departures.waited(everything, step + 1) == int((step + 1 - left_at).sum())


def test_a_part_of_a_large_tensor_stands_for_all_of_it():
    rng, numel, size = np.random.default_rng(0), 200_003, 1000
    departures, left_at = Departures(numel, -1, size), np.full(numel, -1)
    assert departures._left_at.size < numel / (EVERY - 1)
    often = np.arange(numel) % 3 == 0  # these leave more often
    chance = np.where(often, 5.0, 1.0) / np.where(often, 5.0, 1.0).sum()
    for step in range(400):
        indices = np.unique(rng.choice(numel, size, p=chance)).astype(np.uint32)
        if step % 100 == 99:
            wanted = (step - left_at[indices]).mean()
            assert departures.waited(indices, step) / indices.size == pytest.approx(wanted, rel=0.1)
        if step % 50 == 49:  # taken back
            departures.note(step, np.arange(numel, dtype=np.uint32))
            departures.drop(step)
        departures.note(step, indices)
        left_at[indices] = step
    unwatched = np.array([BLOCK], np.uint32)
    last = departures.waited(indices, 400) / indices.size
    assert departures.waited(unwatched, 400) == round(last)
