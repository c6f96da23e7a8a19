"""Diagnosis of a wait from the other ranks' answers: which rank is the cause, and the words for
it."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.watch.peers import Answer
from hvd_sparse.watch.stack import JOIN_REASON

LONGEST_LIST = 8
"""Names that a message lists before it counts the rest."""
SILENCE = {
    "paused": "its process is paused, or its machine overloaded",
    "busy": "its process runs, and something in it holds Python's lock",
    "silent": "its process is paused, or something in it holds Python's lock; no rank on its host "
    "can tell",
}
"""Words for the states of a rank that takes connections and does not answer."""


def is_gone(answers: Sequence[Answer]) -> bool:
    """Tell whether some rank will not go on by itself.

    Without any answers all other ranks count as gone.
    """
    return not answers or any(
        answer.state in ("paused", "ended", "unreachable") for answer in answers
    )


def is_behind(answers: Sequence[Answer]) -> bool:
    """Tell whether some rank answers, and has not submitted a tensor that this rank waits for."""
    return any(answer.behind for answer in answers)


def is_in_doubt(answers: Sequence[Answer], waited_s: float, limit_s: float) -> bool:
    """Tell whether some rank may be busy or stood still, and so has not had all of the time limit.

    Parameters
    ----------
    answers : those of the other ranks
    waited_s : seconds for which this rank has waited
    limit_s : the time limit, in seconds
    """
    return any(
        answer.state in ("busy", "silent")
        or (answer.behind and waited_s - answer.stood_s < limit_s)
        for answer in answers
    )


def remedy(why: str) -> str:
    """Return the last sentence of the message: the end of this process, and the remedy."""
    return (
        "This process ends now"
        if why == JOIN_REASON
        else (
            "This process ends now, as nothing else ends its wait; see that rank's output, "
            "or raise timeout_s"
        )
    )


def describe_answers(answers: Sequence[Answer], pending: dict[str, int]) -> str:
    """Name the ranks that keep this one waiting, and what each is doing."""
    words = [
        _describe_answer(answer, pending)
        for answer in answers
        if answer.state != "answers" or answer.behind
    ]
    if not words:
        return "all ranks answer and have submitted them: the network, or what drives it, is stuck"
    hidden = len(words) - LONGEST_LIST
    return "; ".join(words[:LONGEST_LIST]) + (f"; and {hidden} more ranks" if hidden > 0 else "")


def _describe_answer(answer: Answer, pending: dict[str, int]) -> str:
    if answer.state in SILENCE:
        return f"rank {answer.rank} takes connections and does not answer: {SILENCE[answer.state]}"
    if answer.state == "ended":
        return f"rank {answer.rank} has ended or closed its compressor"
    if answer.state == "unreachable":
        return (
            f"rank {answer.rank} could not be asked at {', '.join(answer.tried) or 'any address'}"
        )
    what = "them" if len(answer.behind) == len(pending) else names(answer.behind)
    where = JOIN_REASON if answer.is_joined else f"it is at {answer.place}"
    return f"rank {answer.rank} has not submitted {what}: {where}"


def names(keys: Sequence[str]) -> str:
    """Return the first names of tensors, and the number of the rest."""
    hidden = len(keys) - LONGEST_LIST
    return ", ".join(keys[:LONGEST_LIST]) + (f" and {hidden} more tensors" if hidden > 0 else "")
