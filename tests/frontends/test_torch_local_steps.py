"""Local steps on two real ranks: what is exchanged every few steps, and what training makes of
it."""

from __future__ import annotations

import pytest
from _outcomes import measured
from harness import Outcome, launch

RANKS = 2


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    result = launch("frontends/torch_local_steps.py", RANKS, "gloo")
    result.check()
    return result


def test_with_everything_sent_the_parameters_become_the_ranks_mean(outcome: Outcome) -> None:
    results = measured(outcome, "everything_sent_is_local_sgd")
    for step, digests in enumerate(zip(*(result["digests"] for result in results))):
        assert (len(set(digests)) == 1) is (step % 3 == 2)
    for result in results:
        assert result["furthest"] < 1e-6
        assert result["exchanges"] == 3


def test_bfloat16_becomes_the_ranks_mean(outcome: Outcome) -> None:
    results = measured(outcome, "bfloat16_is_local_sgd")
    for digests, is_one in zip(zip(*(result["digests"] for result in results)), (False, True)):
        assert (len(set(digests)) == 1) is is_one
    for result in results:
        assert result["furthest"] < 2**-6  # a few roundings to 8 bits


def test_a_layer_is_exchanged_once_it_is_unfrozen_or_refused(outcome: Outcome) -> None:
    results = measured(outcome, "a_layer_that_was_frozen_meanwhile_is_exchanged")
    for step, digests in enumerate(zip(*(result["digests"] for result in results))):
        assert (len(set(digests)) == 1) is (step != 2)
    for result in results:
        assert len(set(result["digests"][:2])) == 1 and result["digests"][3] != result["digests"][1]
        assert len(result["words"]) == 2
        for words in result["words"]:
            assert (
                words.startswith("InvalidOption: parameter '0.weight'")
                and "make LocalSteps while" in words
            )


def test_the_outer_step_is_nesterovs(outcome: Outcome) -> None:
    for result in measured(outcome, "outer_momentum_is_nesterovs"):
        assert result["furthest"] < 1e-6


def test_what_ranks_have_moved_is_applied_or_kept(outcome: Outcome) -> None:
    results = measured(outcome, "nothing_is_lost")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert result["lost"] < 1e-5 < result["kept"]
        assert 0.05 < result["density"] < 0.15


def test_sbc_with_its_delay_applies_or_keeps_what_ranks_have_moved(outcome: Outcome) -> None:
    results = measured(outcome, "nothing_is_lost_by_sbc_with_its_delay")
    assert len({result["digest"] for result in results}) == 1
    for result in results:
        assert result["lost"] < 1e-5 < result["kept"]
        assert 0 < result["density"] <= 0.15


def test_a_checkpoint_between_two_exchanges_goes_on_bit_for_bit(outcome: Outcome) -> None:
    results = measured(outcome, "a_checkpoint_in_the_middle_goes_on")
    assert len({result[which] for result in results for which in ("whole", "half")}) == 1


def test_what_cannot_be_is_refused_with_the_remedy(outcome: Outcome) -> None:
    expected = ("give LocalSteps the optimizer itself", "functools.partial", "1 or more",
                "without outer_momentum", "0, or below 1")  # fmt: skip
    for words in measured(outcome, "what_cannot_be_is_refused"):
        assert len(words) == len(expected)
        assert all(
            told.startswith("InvalidOption") and remedy in told
            for remedy, told in zip(expected, words)
        )


def test_eight_local_steps_train_with_an_eighth_of_the_bytes(outcome: Outcome) -> None:
    often, seldom = (measured(outcome, f"digits_every_{every}") for every in (1, 8))
    for results in (often, seldom):
        assert len({result["digest"] for result in results}) == 1
        assert min(result["accuracy"] for result in results) > 0.9
    for more, fewer in zip(often, seldom):
        assert fewer["bytes"] * 8 == more["bytes"]
