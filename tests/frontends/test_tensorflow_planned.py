"""Groups that are planned in a run of TensorFlow, on two real ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from _outcomes import measured
from harness import Outcome, launch

RANKS = 2
ADOPTED_AT = 8
NAMES = [f"tensor{i}:0" for i in range(6)]


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def outcome(request: pytest.FixtureRequest) -> Outcome:
    script = "frontends/tensorflow_planned.py"
    result = launch(script, RANKS, request.param, str(RANKS))
    result.check()
    return result


def test_a_plan_is_adopted_at_one_step_and_changes_no_bit(outcome: Outcome) -> None:
    results = measured(outcome, "a_plan_makes_no_difference")
    digests = [result[kind]["digests"] for result in results for kind in result]
    assert len(digests) == 3 * RANKS and all(each == digests[0] for each in digests)
    assert len(set(digests[0])) == ADOPTED_AT + 4
    for kind in ("function", "eager"):
        ours = [result[kind] for result in results]
        assert all(each["groups"] == ours[0]["groups"] for each in ours)
        assert all(each["plan"] == ours[0]["plan"] for each in ours)
        assert [each["others"] for each in ours] == RANKS * [[ADOPTED_AT]]
        planned = sorted(name for members in ours[0]["groups"] for name in members)
        assert planned == sorted(name.replace("tensor", kind) for name in NAMES)
        predicted_s = ours[0]["plan"]["predicted_s"]
        assert predicted_s["planned"] <= min(predicted_s.values())
        assert all(each["lost"] == 0 for each in ours)
    assert all(result["without"]["groups"] is None for result in results)


def test_merged_layers_are_planned_and_planned_anew_and_nothing_is_lost(outcome: Outcome) -> None:
    results = measured(outcome, "merged_layers_are_planned_and_planned_anew")
    first, *others = results
    for other in others:
        assert other == first
    assert set(first["lost"]) == {0}
    groups = first["groups"]
    changes = [number for number, (old, new) in enumerate(pairwise(groups), start=1) if old != new]
    assert first["others"] == changes
    adopted, departed, again = changes[:3]
    assert adopted == ADOPTED_AT and groups[adopted] is not None
    assert groups[departed] is None and groups[again] is not None
    assert again - departed == ADOPTED_AT


def test_what_cannot_be_is_refused_with_the_remedy(outcome: Outcome) -> None:
    for told in measured(outcome, "what_cannot_be_is_refused"):
        assert told["no plan"]["raised"] == "InvalidOption"
        assert "groups='planned'" in told["no plan"]["words"]
        assert told["no groups"]["raised"] == "InvalidOption"
        assert "groups='planned'" in told["no groups"]["words"]
