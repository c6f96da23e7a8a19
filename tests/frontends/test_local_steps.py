"""Local steps on two real ranks."""

import pytest
from _common import check_refused, launched, measured, measured_of


@pytest.fixture(params=["torch-gloo", "tensorflow-mpi"])
def outcome(request):
    framework, _, controller = request.param.partition("-")
    return launched("frontends/user_programs.py", 2, controller, framework)


@pytest.mark.parametrize(("kind", "every"), [("mean", 3), ("nesterov", 2)])
def test_with_everything_sent_the_outer_step_is_the_one_that_is_written_out(outcome, kind, every):
    results = measured(outcome, f"outer_{kind}")
    for step, digests in enumerate(zip(*(result["digests"] for result in results))):
        assert (len(set(digests)) == 1) is (step % every == every - 1)
    for result in results:
        assert result["furthest"] < 1e-5 and result["exchanges"] == 4


def test_bfloat16_becomes_the_ranks_mean(outcome):
    results = measured(outcome, "bfloat16_is_local_sgd")
    same = zip(zip(*(result["digests"] for result in results)), (True, False, True))
    for digests, is_one in same:
        assert (len(set(digests)) == 1) is is_one
    for result in results:
        assert result["furthest"] < 2**-6 and result["moved"] > 0.01  # a few roundings to 8 bits


def test_what_ranks_have_moved_is_applied_or_kept(outcome):
    for name, results in measured_of(outcome, "kept_by").items():
        assert len({result["digest"] for result in results}) == 1
        for result in results:
            assert result["lost"] < 1e-5 < result["kept"]
            assert 0 < result["density"] < 0.15 or "topk" in name


def test_an_exchange_that_failed_can_be_made_again(outcome):
    results = measured(outcome, "an_exchange_is_possible_after_one_that_failed")
    assert len({result["digest"] for result in results}) == 1
    assert all("NonFiniteGradient" in result["words"] for result in results)


def test_a_checkpoint_between_two_exchanges_goes_on_bit_for_bit(outcome):
    results = measured(outcome, "a_checkpoint_in_the_middle_goes_on")
    assert len({digest for result in results for digest in result}) == 1


def test_what_cannot_be_is_refused_with_the_remedy(outcome):
    check_refused(outcome)


def test_a_layer_is_exchanged_once_it_is_unfrozen_or_refused(outcome):
    results = measured(outcome, "frozen")
    for step, digests in enumerate(zip(*(result["digests"] for result in results))):
        assert (len(set(digests)) == 1) is (step in (1, 3))
    for result in results:
        for words in result["words"]:
            assert "InvalidOption: " in words and "'weights" in words
            assert "make LocalSteps while" in words
