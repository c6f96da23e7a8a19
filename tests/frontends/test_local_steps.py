"""Local steps on two real ranks."""

import pytest
from _common import check_refused, launched, measured_of


@pytest.fixture(params=["torch-gloo", "tensorflow-mpi"])
def outcome(request):
    framework, _, controller = request.param.partition("-")
    return launched("frontends/user_programs.py", 2, controller, framework)


@pytest.mark.parametrize(
    "kind",
    [
        "outer",
        "bfloat16_becomes_the_ranks_mean",
        "kept_by",
        "an_exchange_is_possible_after_one_that_failed",
        "a_checkpoint_in_the_middle_goes_on",
        "frozen",
    ],
)
def test_a_law_holds_on_every_rank(outcome, kind):
    assert measured_of(outcome, kind)


def test_what_cannot_be_is_refused_with_the_remedy(outcome):
    check_refused(outcome)
