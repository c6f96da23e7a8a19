"""Every exchange over Horovod's own collectives: the bits of the core, and a failed step that ends
on every rank.

Invariants 24, 25 and 30 on real ranks; two ranks are in ``test_methods``.
"""

from __future__ import annotations

import pytest
from frontends._exchange_cases import EXCHANGES, GOING_ON, GROUPED, IN_A_GROUP
from frontends._outcomes import measured
from harness import Outcome, launch

WORLDS = [
    (2, "gloo", "torch"),
    (3, "mpi", "torch"),
    (4, "gloo", "torch"),
    (2, "gloo", "tensorflow"),
    (3, "gloo", "tensorflow"),
    (4, "mpi", "tensorflow"),
]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: "-".join(map(str, world)))
def outcome(request: pytest.FixtureRequest) -> Outcome:
    ranks, controller, frontend = request.param
    result = launch(f"frontends/{frontend}_exchanges.py", ranks, controller, str(ranks))
    has_groups = {f"{name}{IN_A_GROUP}" for name in GROUPED} <= set(result.check()[0])
    assert has_groups == (frontend == "tensorflow")
    return result


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_applies_and_keeps_the_bits_that_threads_do(
    outcome: Outcome, name: str
) -> None:
    """Also where Horovod's groups hand tensors over together."""
    found = cases_of(outcome, name)
    assert found
    for case in found:
        check_bits(outcome, case)


def cases_of(outcome: Outcome, name: str) -> list[str]:
    """Alone and in a group of Horovod's, as far as the frontend has them."""
    return [case for case in (name, f"{name}{IN_A_GROUP}") if case in outcome.results[0]]


def check_bits(outcome: Outcome, name: str) -> None:
    first, *others = measured(outcome, name)
    for result in (first, *others):
        assert (result["applied"], result["kept"]) == (
            result["expected"]["applied"],
            result["expected"]["kept"],
        )
        assert result["applied"] == first["applied"]
        assert (result["expected"]["lost"] == 0) or "published" in name


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_step_that_fails_on_one_rank_fails_on_all_and_leaves_no_trace(
    outcome: Outcome, name: str
) -> None:
    for result in [
        result for case in cases_of(outcome, name) for result in measured(outcome, case)
    ]:
        assert result["is_usable"]
        if name in GOING_ON:
            assert (result["raised"], result["beyond_range"]) == 2 * ("NaN in [1]",)
            continue
        assert "PeerFailure" in result["raised"], result["raised"]
        assert "NonFiniteGradient" in result["raised"], result["raised"]
        assert "NonFiniteGradient" in result["beyond_range"], result["beyond_range"]
