"""One selection from a group: what fails on one rank, and what is refused before the first step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import cases
import numpy as np
import pytest
import worlds
from merged import MERGED, SPECS, configure, lost, train

from hvd_sparse.errors import InvalidOption, PeerFailure
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors._aim import Cut
from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.selectors.topk import TopK
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.session import Session
from hvd_sparse.types import Selection, TensorSpec


@dataclass(frozen=True)
class Fragile(TopK):
    id: ClassVar[str] = "fragile"

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        if float(accumulated[0]) == 77.0:
            raise ArithmeticError("no threshold to be found")
        return super().find(accumulated, context)

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        if taken.count and taken.indices[0] == 0 and float(taken.values[0]) == 77.0:
            raise ArithmeticError("no threshold to be found")
        return super().cut(taken, aim, context)


@pytest.mark.parametrize("rollback", [True, False])
def test_a_selection_that_fails_on_one_rank_fails_on_all_and_leaves_no_trace(rollback):
    """The carriers are gone by then, so that the words travel in the message."""
    groups = [["t0", "t3"], ["t1", "t2"]]
    configuration = replace(configure(rollback=rollback, groups=groups), selector=Fragile(0.05))

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        session.reduce(worlds.integers(SPECS, collective.rank, 0))
        before = worlds.snapshot(session)
        broken = worlds.integers(SPECS, collective.rank, 1)
        if collective.rank == 1:
            broken["t1"].reshape(-1)[0] = 77.0 - worlds.residuals(session)["t1"][0]
        with pytest.raises(PeerFailure) as caught:
            session.reduce(broken)
        after = worlds.snapshot(session)
        whole = session.reduce(worlds.integers(SPECS, collective.rank, 2))
        return (
            str(caught.value),
            before == after,
            all(np.isfinite(value).all() for value in whole.values()),
        )

    for words, is_same, is_finite in worlds.run(3, script):
        assert (
            "rank 1: selecting from 't1', 't2' as one: ArithmeticError: no threshold to be found"
            in words
        )
        assert is_same or not rollback
        assert is_finite


@pytest.mark.parametrize("case", cases.EXCHANGES, ids=str)
def test_exchanges_that_choose_tensor_by_tensor_are_refused(case):
    exchange = case.create(EXCHANGES)
    if exchange.settles_later or exchange.sums_first:
        with pytest.raises(
            InvalidOption, match=rf"select_over is 'group', and exchange {case.id} .*'allgather'"
        ):
            configure(exchange=exchange)
    else:
        outcomes = train(configure(exchange=exchange))
        assert not any(balance.any() for balance in lost(outcomes).values())


@pytest.mark.parametrize("case", [case for case in cases.SELECTORS if case not in MERGED], ids=str)
def test_selectors_that_compare_a_tensors_gradient_with_its_residual_are_refused(case):
    with pytest.raises(
        InvalidOption,
        match=f"select_over is 'group', and selector {case.id} compares .* use another selector",
    ):
        configure(case)


DOUBLE = [*SPECS[:2], TensorSpec("d", (30, 4), "float64"), *SPECS[2:]]


def test_small_neighbours_of_other_precision_are_not_grouped_with_each_other():
    assert grouped(DOUBLE, configure(groups=None)) == [(3, 4, 5), (2,), (0, 1)]
    assert grouped(DOUBLE, configure(groups=None, select_over="tensor")) == [(0, 1, 2, 3, 4, 5)]
    outcomes = train(configure(groups=None), ranks=2, specs=DOUBLE)
    assert not any(balance.any() for balance in lost(outcomes).values())


def test_groups_that_were_asked_for_and_cannot_be_one_vector_are_refused_by_name():
    def script(collective):
        words = []
        for groups in ([["t0", "d"]], 1):
            with pytest.raises(InvalidOption) as caught:
                Session(configure(groups=groups), DOUBLE, collective)
            words.append(str(caught.value))
        session = Session(configure(groups=50), DOUBLE, collective)
        with pytest.raises(InvalidOption) as caught:
            session.step.regroup([(0, 1, 2, 3, 4, 5)])
        return [*words, str(caught.value)]

    for words in worlds.run(1, script)[0]:
        assert "tensors 't0' and 'd' of one group are accumulated in float32 and float64" in words
        assert "name groups without these together, or use select_over='tensor'" in words


def test_groups_of_more_entries_than_indices_can_number_are_refused():
    specs = worlds.tensors((2**16, 2**15), (2**16, 2**15))

    def script(collective):
        with pytest.raises(
            InvalidOption, match=r"2 tensors of a group from 't0' to 't1' have 4294967296 entries"
        ):
            Session(configure(), specs, collective)

    worlds.run(1, script)
    assert grouped(specs, configure(density=1e-9, groups=None)) == [(1,), (0,)]
