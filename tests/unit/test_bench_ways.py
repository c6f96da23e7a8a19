"""The ways of the literature that are trained side by side: what they restate, and their search."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the bench trains with it")

import torch

from benchmarks.ways import appliers
from benchmarks.ways import worker_rules as rules
from benchmarks.ways.__main__ import lines, wanted
from benchmarks.ways.page import section
from benchmarks.ways.table import ways_of
from hvd_sparse.core.kernels import reference
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec

WORKERS, NUMEL, COUNT, STEPS = 3, 64, 5, 6
SPEC = TensorSpec("w", (NUMEL,), "float32")


@pytest.fixture
def gradients():
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(WORKERS, NUMEL, generator=drawn) for _ in range(STEPS)]


@pytest.mark.parametrize(
    ("id", "rule"),
    [
        ("error_feedback", rules.ErrorFeedback),
        ("momentum_correction", rules.MomentumCorrection),
        ("adam_correction", rules.AdamCorrection),
    ],
)
def test_a_rule_sends_what_the_packages_memory_sends(id, rule, gradients):
    worker = rule(WORKERS, NUMEL)
    states = [MEMORIES.create(id).create(SPEC, rollback=True) for _ in range(WORKERS)]
    for step, rows in enumerate(gradients, 1):
        total = np.zeros(NUMEL, np.float64)
        count = NUMEL if step == 1 else COUNT  # Adam's first directions are all as long
        for state, row in zip(states, rows):
            whole = state.compensate(row.numpy().copy(), reference, WORKERS).vector
            chosen = np.sort(np.argsort(-np.abs(whole))[:count]).astype(np.uint32)
            sent = Selection(chosen, whole[chosen].copy(), NUMEL)
            total[chosen] += sent.values
            state.update(sent, True, reference)
            state.commit()
            if hasattr(state, "step"):  # counted by the tensor that holds the memory
                state.step = step
        np.testing.assert_allclose(worker.send(rows, count, step), total / WORKERS, rtol=2e-4)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_every_way_sends_few_entries_or_says_otherwise(optimizer, gradients):
    for id, way in ways_of(optimizer, 2).items():
        if way.worker is None or id in ("ef21", "frozen"):  # hold what was sent, and begin dense
            continue
        worker = way.worker(WORKERS, NUMEL)
        for step, rows in enumerate(gradients, 1):
            assert 0 < np.count_nonzero(worker.send(rows, COUNT, step)) <= WORKERS * COUNT, id


def test_what_error_feedback_keeps_and_sends_is_all_there_was(gradients):
    for choice in (rules.largest, rules.drawn_from_largest, rules.Regularized()):
        worker = rules.ErrorFeedback(WORKERS, NUMEL, choice)
        sent = sum(worker.send(rows, COUNT, step) for step, rows in enumerate(gradients, 1))
        whole = sent + worker.residual.mean(0)
        torch.testing.assert_close(whole, sum(gradients).mean(0), rtol=1e-4, atol=1e-5)


def test_all_entries_at_once_are_the_dense_optimizers(gradients):
    adam, aware = appliers.Adam(NUMEL), appliers.AwareOfAge(NUMEL)
    frozen = rules.FrozenSquares(WORKERS, NUMEL, until=STEPS)
    momentum, ef21 = appliers.Momentum(NUMEL), rules.Ef21(WORKERS, NUMEL)
    for step, rows in enumerate(gradients, 1):
        expected = adam.apply(rows.mean(0), step)
        torch.testing.assert_close(aware.apply(rows.mean(0), step), expected, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(frozen.send(rows, COUNT, step), expected)
        torch.testing.assert_close(
            ef21.send(rows, NUMEL, step), momentum.apply(rows.mean(0), step), rtol=1e-3, atol=1e-5
        )


def test_regtopk_holds_back_what_the_others_cancelled():
    choose = rules.Regularized()
    rows = torch.tensor([[4.0, 0.0, 1.0], [-4.0, 0.0, 1.0]])
    assert choose(rows, 1).tolist() == [[0], [0]]
    assert choose(rows, 1).tolist() == [[2], [2]]


def test_a_search_goes_on_while_the_best_rate_is_at_an_end():
    first = next(iter(lines((("digits", "adamw"),), 24)))
    results = {}

    def make(score):
        for each in wanted(first, results):
            results[each] = {"score": score(each)}

    make(lambda each: each.rate)
    assert len(results) == 3
    make(lambda each: each.rate)
    make(lambda each: 0.0)
    assert len({each.rate for each in results}) == 5
    make(lambda each: 1.0)
    assert sorted(each.seed for each in results) == [0] * 5 + [1, 2]
    assert wanted(first, results) == []


def test_a_table_begins_when_dense_is_there():
    every = list(lines((("digits", "momentum"),), 24))
    results = {}
    for id, rows in (("ours", 0), ("dense", 5)):
        for first in every:
            while first.way == id and (now := wanted(first, results)):
                results |= {each: {"score": 90.0} for each in now}
        told = section(results, "digits", "momentum")
        assert len(told) == rows
    assert [line.count("+0.00 ± 0.00") for line in told] == [0, 0, 0, 1, 1]
