"""Local steps of TensorFlow on two real ranks."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

RANKS = 2


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    script = "frontends/tensorflow_local_steps.py"
    result = launch(script, RANKS, "mpi", str(RANKS))
    result.check()
    return result


def test_bfloat16_becomes_the_ranks_mean(outcome: Outcome) -> None:
    results = measured(outcome, "bfloat16_is_local_sgd")
    same = zip(zip(*(result["digests"] for result in results)), (True, False, True))
    for digests, is_one in same:
        assert (len(set(digests)) == 1) is is_one
    for result in results:
        assert result["furthest"] < 2**-6 and result["moved"] > 0.01  # a few roundings to 8 bits


def test_a_layer_that_is_unfrozen_is_refused_with_the_remedy(outcome: Outcome) -> None:
    for result in measured(outcome, "a_layer_that_is_unfrozen_is_refused"):
        assert result["words"].startswith("variable 'a_layer_that_is_unfrozen_is_refused.1")
        assert "make LocalSteps while it is unfrozen" in result["words"]


def test_the_outer_step_is_nesterovs(outcome: Outcome) -> None:
    results = measured(outcome, "the_outer_step_is_nesterovs")
    for step, digests in enumerate(zip(*(result["digests"] for result in results))):
        assert (len(set(digests)) == 1) is (step % 2 == 1)
    for result in results:
        assert result["furthest"] < 1e-5
        assert result["exchanges"] == 4


def test_what_ranks_have_moved_is_applied_or_kept(outcome: Outcome) -> None:
    results = measured(outcome, "nothing_is_lost")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert result["lost"] < 1e-5 < result["kept"]


def test_a_checkpoint_between_two_exchanges_goes_on_bit_for_bit(outcome: Outcome) -> None:
    results = measured(outcome, "a_checkpoint_in_the_middle_goes_on")
    assert len({result[which] for result in results for which in ("whole", "half")}) == 1


def test_what_cannot_be_is_refused_with_the_remedy(outcome: Outcome) -> None:
    expected = ("functools.partial", "1 or more", "before the training")
    for words in measured(outcome, "what_cannot_be_is_refused"):
        assert len(words) == len(expected)
        assert all(remedy in told for remedy, told in zip(expected, words))
