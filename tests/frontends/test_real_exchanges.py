"""Every exchange over Horovod's own collectives: the bits of the core, and a failed step that ends
on every rank.

Invariants 24, 25 and 30 on real ranks; two ranks are in ``test_methods``.
"""

from __future__ import annotations

import pytest
from frontends._common import launched, measured
from frontends._exchange_cases import EXCHANGES, GOING_ON, IN_A_GROUP

WORLDS = [
    (2, "gloo", "torch"),
    (3, "mpi", "torch"),
    (4, "gloo", "torch"),
    (2, "gloo", "tensorflow"),
    (3, "gloo", "tensorflow"),
    (4, "mpi", "tensorflow"),
]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: "-".join(map(str, world)))
def outcome(request):
    ranks, controller, frontend = request.param
    return launched("frontends/exchanges.py", ranks, controller, frontend)


def results_of(outcome, name):
    """Alone and in a group of Horovod's, as far as the frontend has them."""
    there = [case for case in (name, f"{name}{IN_A_GROUP}") if case in outcome.check()[0]]
    assert there
    return [measured(outcome, case) for case in there]


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_applies_and_keeps_the_bits_that_threads_do(outcome, name):
    for first, *others in results_of(outcome, name):
        for result in (first, *others):
            expected = result["expected"]
            assert (result["applied"], result["kept"]) == (expected["applied"], expected["kept"])
            assert result["applied"] == first["applied"]
            assert expected["lost"] == 0 or "published" in name


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_step_that_fails_on_one_rank_fails_on_all_and_leaves_no_trace(outcome, name):
    for result in (each for results in results_of(outcome, name) for each in results):
        assert result["is_usable"]
        if name in GOING_ON:
            assert (result["raised"], result["beyond_range"]) == 2 * ("NaN in [1]",)
            continue
        assert "PeerFailure" in result["raised"], result["raised"]
        assert "NonFiniteGradient" in result["raised"], result["raised"]
        assert "NonFiniteGradient" in result["beyond_range"], result["beyond_range"]
