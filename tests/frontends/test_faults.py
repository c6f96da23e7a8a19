"""Faults under both frameworks: an error of the project's own on every rank, soon, and no hang."""

import pytest
from _common import check_every_case, launched
from harness import launch

WORLDS = [
    (2, "gloo", "torch"),
    (3, "mpi", "torch"),
    (2, "gloo", "tensorflow"),
    (3, "mpi", "tensorflow"),
    (4, "mpi", "tensorflow"),
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)))
def test_a_fault_is_an_error_of_ours_on_every_rank(world):
    ranks, controller, framework = world
    check_every_case(launched("frontends/faults.py", ranks, controller, framework, str(ranks)))


@pytest.mark.parametrize(("framework", "controller"), [("torch", "mpi"), ("tensorflow", "gloo")])
def test_a_rank_that_never_comes_ends_in_a_timeout(framework, controller):
    outcome = launch("frontends/hangs.py", 2, controller, framework, "never_comes")
    waiting, absent = outcome.results
    assert absent == "absent"
    assert "ExchangeTimeout" in (outcome.output if framework == "tensorflow" else "") + str(waiting)
    assert outcome.code not in (0, None)
