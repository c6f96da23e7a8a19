"""States brought together in a new world, where workers came, went, or only changed their ranks."""

from __future__ import annotations

import numpy as np
import pytest
import worlds

from hvd_sparse.errors import RankMismatch
from hvd_sparse.state.redistribution import Commits

MODEL = {"a": "[5, 4] float32", "b": "[3] float32"}
NUMEL = {"a": 20, "b": 3}


def state_of(worker, rank, size, reduction="average", steps=7):
    draw = np.random.default_rng(worker)
    tensors = {
        key: {
            "steps": steps,
            "threshold": 0.5,
            "memo": [1],
            "is_sparse": key == "a",
            "arrays": {
                "residual": draw.normal(size=n).astype("f4")
                if key == "a"
                else np.full(n, 2, np.float32)
            },
        }
        for key, n in NUMEL.items()
    }
    fixed = {"version": 2, "library": "1", "config": {}, "model": MODEL, "reduction": reduction}
    return {**fixed, "rank": rank, "world_size": size, "tensors": tensors}


def new_worker(rank, size):
    return {**state_of(99, rank, size), "tensors": {}}


def share(states):
    """What each rank of the new world has, of the states that they bring."""
    return worlds.run(len(states), lambda c: Commits().rejoin(states[c.rank], c, "share", 5.0))


def owed(states, size, factor):
    return sum(s["tensors"]["a"]["arrays"]["residual"].astype("f8") for s in states) * factor(size)


@pytest.mark.parametrize(
    ("reduction", "factor"), [("average", lambda n: 1 / n), ("sum", lambda n: 1)]
)
@pytest.mark.parametrize("new", [0, 1, 3])
@pytest.mark.parametrize("died", [0, 1])
def test_what_the_survivors_owe_is_kept(reduction, factor, new, died):
    old = [state_of(worker, worker, 3, reduction) for worker in range(3)]
    survivors = old[died:]
    size = len(survivors) + new
    found = share([*survivors, *(new_worker(len(survivors) + i, size) for i in range(new))])
    if not died and not new:
        assert [f["tensors"]["a"]["threshold"] for f in found] == [0.5] * 3
    else:
        assert {f["tensors"]["a"]["threshold"] for f in found} == {None}
    expected = owed(survivors, 3, factor)
    np.testing.assert_allclose(owed(found, size, factor), expected, rtol=1e-6, atol=1e-6)
    assert [(f["rank"], f["world_size"]) for f in found] == [(rank, size) for rank in range(size)]
    assert all(f["tensors"]["a"]["steps"] == 7 and f["reduction"] == reduction for f in found)


def test_where_ranks_only_changed_places_residuals_stay_with_their_workers():
    old = [state_of(worker, worker, 3) for worker in (2, 0, 1)]
    for rank, (given, found) in enumerate(zip(old, share(old))):
        assert found["rank"] == rank
        kept, brought = (s["tensors"]["a"]["arrays"]["residual"] for s in (found, given))
        assert kept.tobytes() == brought.tobytes()


def test_survivors_at_different_steps_are_refused_on_all_ranks():
    with pytest.raises(
        RankMismatch,
        match=r"'a' has made \[7, 8\] steps .* give the compressor to the elastic state",
    ):
        share([state_of(0, 0, 2), state_of(1, 1, 2, steps=8), new_worker(2, 3)])
