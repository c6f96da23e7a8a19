"""``max_gathered_bytes``: what the messages of all ranks may come to, for a tensor."""

from __future__ import annotations

from dataclasses import replace

import cases
import numpy as np
import pytest
import worlds

from hvd_sparse.registry import CODECS, SELECTORS
from hvd_sparse.step.session import Session
from hvd_sparse.wire.frame import HEADER_BYTES
from hvd_sparse.wire.message import capacity, overhead_bytes

(SPEC,) = worlds.tensors((50, 40))
SIZE, LIMIT = 4, 4 * 400


def run(configuration, steps=4):
    """Messages by rank and step, what was applied and what is kept."""

    def script(collective):
        session = Session(configuration, [SPEC], collective, average=False)
        given = [worlds.integers([SPEC], collective.rank, step) for step in range(steps)]
        applied, sizes, before = [], [], 0
        for gradients in given:
            applied.append(session.reduce(gradients)["t0"])
            sent = session.step.stats.bytes["payload"]
            sizes.append(sent - before)
            before = sent
        state = session.step.transactions.settle_all()[0]
        kept = state.memory.arrays()["residual"].reshape(SPEC.shape)
        dense = session.step.stats.report(None)["dense_steps"]
        return (
            sum(g["t0"].astype(np.float64) for g in given),
            applied,
            kept.astype(np.float64),
            sizes,
            dense,
        )

    return worlds.run(SIZE, script)


@pytest.mark.parametrize(
    "case", [case for case in cases.SELECTORS if "share" not in str(case)], ids=str
)
def test_messages_stay_within_it_and_the_rest_in_the_residual(case):
    selector = case.create(SELECTORS, density=0.1)
    configuration = replace(
        worlds.configure(max_gathered_bytes=LIMIT), selector=selector, schedule=None
    )
    outcomes = run(configuration)
    for _, applied, _, sizes, _ in outcomes:
        assert max(sizes) <= LIMIT / SIZE
        assert all(worlds.same_bits(mine, first) for mine, first in zip(applied, outcomes[0][1]))
    if configuration.memory.conserves and not configuration.selector.changes_values:
        given, kept = (sum(outcome[place] for outcome in outcomes) for place in (0, 2))
        assert np.array_equal(given, sum(a.astype(np.float64) for a in outcomes[0][1]) + kept)
    assert any(np.any(a) for a in outcomes[0][1]), "nothing was applied at all"


def test_a_density_that_asks_for_more_goes_dense():
    asked = {"density": 0.1, "max_gathered_bytes": LIMIT}
    assert {outcome[4] for outcome in run(worlds.configure(**asked, allow_dense=True))} == {4}
    enough = {**asked, "max_gathered_bytes": SIZE * (200 * 8 + 100)}
    assert {outcome[4] for outcome in run(worlds.configure(**enough, allow_dense=True))} == {0}


@pytest.mark.parametrize("case", cases.CODECS, ids=str)
@pytest.mark.parametrize("gathered_bytes", [1, 1000, 10_000, 1_000_000])
def test_a_capacity_is_the_most_that_fits(case, gathered_bytes):
    codec = case.create(CODECS).at_density(0.01)
    most = capacity(codec, 5000, 4, 4, gathered_bytes)
    room = gathered_bytes / 4 - overhead_bytes(1) - HEADER_BYTES
    assert 1 <= most <= 5000
    assert most == 1 or codec.body_bytes(most, 5000) <= room
    assert most == 5000 or codec.body_bytes(most + 1, 5000) > room
