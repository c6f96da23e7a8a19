"""Timelines of real ranks: ours beside Horovod's own, under MPI and Gloo, on one rank, an even and
an odd number."""

from __future__ import annotations

import _torch_timeline
import pytest
from _outcomes import measured
from harness import Outcome, launch

WORLDS = [(1, "gloo"), (2, "mpi"), (3, "gloo")]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world[0]}-{world[1]}")
def outcome(request: pytest.FixtureRequest) -> Outcome:
    ranks, controller = request.param
    return launch("frontends/torch_timeline.py", ranks, controller)


def test_the_launch_ends_well(outcome: Outcome) -> None:
    outcome.check()


def test_an_early_message_is_through_while_later_gradients_are_computed(outcome: Outcome) -> None:
    results = measured(outcome, "early_messages_are_through_while_later_gradients_are_computed")
    for result in results:
        assert result["kinds"] == ["decode", "encode", "exchange", "select"]
        assert result["spans"] == [_torch_timeline.STEPS] * 4
        assert result["started_before"] == [True] * _torch_timeline.STEPS
    if len(results) > 1:  # Horovod's own timeline, which rank 0 writes; alone, it exchanges nothing
        assert len(results[0]["gathered_before"]) == _torch_timeline.STEPS
        assert any(results[0]["gathered_before"])
        assert all(results[0]["begun_after"])
