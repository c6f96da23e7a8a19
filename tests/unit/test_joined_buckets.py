"""Tensors that travel together make one bucket of their own ones."""

from __future__ import annotations

from hvd_sparse.step.records import BucketRun, StepRun, Ticket, joined


def ticket(run: StepRun, position: int) -> Ticket:
    bucket = BucketRun(position, (position,), entered={position})
    made = Ticket(run, f"tensor{position}")
    made.position, made.bucket = position, bucket
    bucket.sending[position] = made
    return made


def test_a_joined_bucket_has_all_that_its_tensors_have_and_their_tickets_are_in_it() -> None:
    run = StepRun()
    first, second, third = (ticket(run, position) for position in (7, 2, 5))
    second.bucket.errors.append("broken")
    del third.bucket.sending[5]  # goes dense in this step
    bucket = joined([first, second, third])
    assert (bucket.index, bucket.members, bucket.entered) == (7, (2, 5, 7), {2, 5, 7})
    assert bucket.sending == {7: first, 2: second}
    assert bucket.errors == ["broken"]
    assert first.bucket is second.bucket is third.bucket is bucket


def test_a_tensor_that_comes_alone_keeps_its_bucket() -> None:
    alone = ticket(StepRun(), 3)
    own = alone.bucket
    assert joined([alone]) is own is alone.bucket


def test_a_stranger_brings_its_error_whatever_step_it_was_taken_for() -> None:
    stranger = Ticket(StepRun(errors=["unknown"]), "of 12 entries")
    known = ticket(StepRun(), 0)
    assert joined([known, stranger]).errors == ["unknown"]
    assert stranger.bucket is None
    alone = joined([Ticket(StepRun(errors=["unknown"]), "of 12 entries")])
    assert (alone.index, alone.members, alone.errors) == (-1, (), [])
