"""Counters of the bytes, entries and steps of one rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Union

from hvd_sparse.exchanges.context import Outgoing
from hvd_sparse.types import Report

COUNTS = ("sparse_steps", "dense_steps", "passes", "one_pass", "fallbacks")
MEASURED = ("kept", "accumulated", "waited", "entries_measured")
"""Names of counters: the sums of the three numbers in ``Outgoing.observed``, and of
``Outgoing.entries``, over the steps with telemetry."""
BYTES = "frame_bytes"
"""Name of the counter of a tensor's bytes, in frames and dense vectors. It stays 0 on sparse steps
if the exchange encodes the entries."""


class Counts(dict[str, float]):
    """Counters of a tensor, or of all tensors, by name. A name that was never counted has 0."""

    def __missing__(self, name: str) -> float:
        return 0


Sent = tuple[str, Union[Outgoing, None], int]
"""What the counters need to know of a tensor's step: the tensor's name, its contribution, and the
number of entries whose residual this rank keeps. On a dense step, the contribution is None, and the
number is that of the sent bytes."""


class Stats:
    """Counters of one compressor on one rank. The bytes of collectives include failed steps, while
    the counters of tensors do not. ``committed`` lists steps that are not counted yet, because
    counting many steps at once is faster than one by one. ``uncommitted`` returns steps that are
    complete, but may still be rolled back."""

    def __init__(
        self, lock: AbstractContextManager[bool], uncommitted: Callable[[], Iterable[Sent]]
    ) -> None:
        self.committed: list[Sent | None] = []
        self._uncommitted = uncommitted
        self.bytes: Counter[str] = Counter()
        self.received_bytes = 0
        self.nonfinite_steps = 0
        self._tensors: dict[str, Counts] = defaultdict(Counts)
        self._lock = lock

    @property
    def tensors(self) -> dict[str, Counts]:
        with self._lock:
            self.settle()
            tensors = defaultdict(Counts, {key: Counts(c) for key, c in self._tensors.items()})
            _add(tensors, self._uncommitted())
        return tensors

    def settle(self) -> None:
        with self._lock:
            committed, self.committed = self.committed, []
            _add(self._tensors, filter(None, committed))

    def count_bytes(self, kind: str, nbytes: int) -> None:
        """Count bytes sent in a collective; ``kind`` is "payload", "carrier" or "dense"."""
        with self._lock:
            self.bytes[kind] += nbytes

    def all_bytes(self) -> dict[str, int]:
        with self._lock:
            # An allreduce receives as many bytes as it sends.
            sums = self.bytes["carrier"] + self.bytes["dense"]
            messages = self.bytes["payload"] + self.bytes["padding"]
            return {"sent": sums + messages, "received": sums + self.received_bytes}

    def report(self, density_asked: float | None) -> Report:
        """Return all counters of this rank, JSON-serializable.

        steps : number of completed steps of compressed tensors; if they differ, the largest number
        nonfinite_steps : number of steps without effect, because a gradient or a sum had NaN or Inf
        density_asked : the density that the configuration asks for, as given to this method
        sparse_steps, dense_steps : how often a tensor sent selected entries, and how often a tensor
            sent all entries, summed over tensors
        entries_sent, entries_total, density_achieved : over sparse steps, the number of sent
            entries, the number of all entries, and the first divided by the second
        payload_bytes, carrier_bytes, dense_bytes, padding_bytes, bytes_sent : bytes that this rank
            gave to collectives, by kind, and their sum; padding keeps most short messages equally
            long
        bytes_received : bytes of the results of all collectives
        passes : number of times that a selector read a whole tensor to count entries; a reading of
            a group counts once for each of its tensors
        one_pass : number of sparse steps of a tensor whose selected entries were all found while
            the gradient was added to the residual, so that the selector needed no pass of its own
        fallbacks : number of selections that exact top-k made, because a search did not converge or
            too many entries reached the threshold
        contraction : squared L2 norm of the entries that were not sent, divided by that of all
            accumulated entries, each summed over sparse steps; None without telemetry, and with
            exchanges whose result determines which entries are sent
        contraction_bound : 1 - density_achieved, an upper bound of top-k's contraction
        contraction_of_bells : the square of ``contraction_bound``, GaussianK's estimate of top-k's
            contraction for bell-shaped distributions
        staleness : mean number of steps since a sent entry was last sent; 1 if every step sends all
            entries. Estimated from an eighth of a long tensor's entries if the first step sends 512
            or more. None where ``contraction`` is None
        tensors : for each tensor, its own counters
        """
        tensors = self.tensors
        steps = max(
            (counts["sparse_steps"] + counts["dense_steps"] for counts in tensors.values()),
            default=0,
        )
        report: Report = {"steps": steps, "nonfinite_steps": self.nonfinite_steps}
        report |= {"density_asked": density_asked, **_with_bounds(summed(tensors.values()))}
        for kind in ("payload", "carrier", "dense", "padding"):
            report[f"{kind}_bytes"] = self.bytes[kind]
        report |= {f"bytes_{way}": nbytes for way, nbytes in self.all_bytes().items()}
        report["tensors"] = {key: _with_bounds(counts) for key, counts in tensors.items()}
        return report


def _add(tensors: dict[str, Counts], steps: Iterable[Sent]) -> None:
    for key, sent, number in steps:
        totals = tensors[key]
        if sent is None:
            totals["dense_steps"] += 1
            totals[BYTES] += number
            continue
        totals["sparse_steps"] += 1
        totals["entries_sent"] += sent.entries
        totals["entries_total"] += number
        totals[BYTES] += 0 if sent.frame is None else sent.frame.nbytes
        if (found := sent.found) is not None:
            totals["passes"] += found.passes
            totals["one_pass"] += found.is_one_pass
            totals["fallbacks"] += found.is_fallback
        if sent.observed is not None:
            for name, value in measured(sent).items():
                totals[name] += value


def measured(sent: Outgoing) -> dict[str, float]:
    return {} if sent.observed is None else dict(zip(MEASURED, (*sent.observed, sent.entries)))


def summed(each: Iterable[Mapping[str, float]]) -> Counts:
    totals = Counts()
    for counts in each:
        for name, value in counts.items():
            totals[name] += value
    return totals


def figures(counts: Counts) -> Report:
    """Return the figures that both ``Stats.report`` and the records of telemetry contain: the
    counters in ``COUNTS``, the achieved density, the contraction and the staleness."""
    total, accumulated = counts["entries_total"], counts["accumulated"]
    entries = counts["entries_measured"]
    return {
        **{name: counts[name] for name in COUNTS},
        "density_achieved": counts["entries_sent"] / total if total else None,
        "contraction": counts["kept"] / accumulated if accumulated else None,
        "staleness": counts["waited"] / entries if entries else None,
    }


def _with_bounds(counts: Counts) -> Report:
    report = figures(counts)
    achieved = report["density_achieved"]
    return {
        **report,
        "entries_sent": counts["entries_sent"],
        "entries_total": counts["entries_total"],
        "contraction_bound": None if achieved is None else 1 - achieved,
        "contraction_of_bells": None if achieved is None else (1 - achieved) ** 2,
    }
