"""Where the search for a threshold starts in a group: where just its tensors ended together, or
cold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from merged import KEYS, NUMEL, SPECS, configure, train

from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.selectors.topk import TopK


@dataclass(frozen=True)
class Told(TopK):
    """Top-k that writes down what it was given to select from, and the threshold it was given to
    start at."""

    id: ClassVar[str] = "told"
    log: ClassVar[list[Any]] = []

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        assert context.moments == context.kernels.moments(accumulated)  # exact, of whole numbers
        self.log.append((accumulated.size, context.warm is not None))
        return super().find(accumulated, context)

    def aim(self, numel: int, warm: float | None, memo: Any) -> None:
        return None


def told(plans, steps, absent):
    Told.log.clear()
    train(
        replace(configure(), selector=Told(0.05)), ranks=1, plans=plans, steps=steps, absent=absent
    )
    return list(Told.log)


COLD, WARM = False, True


def test_a_group_starts_where_just_its_tensors_ended_and_any_other_starts_cold():
    sizes = dict(zip(KEYS, (spec.numel for spec in SPECS)))
    pair = [["t0", "t3"], ["t1", "t2", "t4"]]
    small, large = sizes["t0"] + sizes["t3"], NUMEL - sizes["t0"] - sizes["t3"]
    assert told([1, 1, pair, pair, 1, 1], 6, {}) == [
        *[(NUMEL, COLD), (NUMEL, WARM)],
        *[(small, COLD), (large, COLD), (small, WARM), (large, WARM)],
        *[(NUMEL, COLD), (NUMEL, WARM)],
    ]


def test_a_group_of_as_many_tensors_with_the_same_first_is_another_group():
    pair = SPECS[0].numel + SPECS[4].numel
    log = told([[["t0", "t4"]], [["t0", "t3"]], [["t0", "t4"]]], 3, {1: ("t4",)})
    assert [is_warm for size, is_warm in log if size == pair] == [COLD, COLD]


def test_the_only_gradient_of_a_group_is_selected_from_as_alone():
    only = {0: KEYS[:4], 1: KEYS[:4], 2: KEYS[:4]}
    assert told([1, 50, 1], 3, only) == [(512, COLD), (512, WARM), (512, WARM)]


def test_a_group_that_lacks_a_gradient_is_another_group():
    rest = NUMEL - SPECS[1].numel
    assert told([1], 5, {2: ("t1",)}) == [
        (NUMEL, COLD),
        (NUMEL, WARM),
        (rest, COLD),
        (NUMEL, COLD),
        (NUMEL, WARM),
    ]


def test_a_tensor_that_was_selected_in_a_group_starts_cold_alone_and_the_other_way_round():
    log = told([1, 50, 50, 1], 4, {})
    sizes = [(spec.numel, is_warm) for is_warm in (COLD, WARM) for spec in SPECS]
    assert sorted(log[1:-1]) == sorted(sizes)
    assert log[0] == log[-1] == (NUMEL, COLD)
