"""Counters of the bytes, entries and steps of one rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from hvd_sparse.step.records import Counted
from hvd_sparse.types import Report

COUNTED = (
    "sparse_steps",
    "dense_steps",
    "entries_sent",
    "entries_total",
    "passes",
    "one_pass",
    "fallbacks",
)
BYTES = "frame_bytes"
"""Counter of the bytes of a tensor's frames or dense vectors; 0 if the exchange encodes."""


class Stats:
    """Counters of one compressor on one rank. Failed steps count in the bytes of collectives, and
    in no counter of a tensor. Tensors in ``completed`` are counted once a step, because a call per
    tensor would cost more."""

    def __init__(self, lock: AbstractContextManager[bool]) -> None:
        self.completed: list[Counted] = []
        self.bytes: Counter[str] = Counter()
        self.received_bytes = 0
        self.nonfinite_steps = 0
        self._tensors: dict[str, Counter[str]] = defaultdict(Counter)
        self._observed: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        self._lock = lock

    @property
    def tensors(self) -> dict[str, Counter[str]]:
        self.settle()
        return self._tensors

    def settle(self) -> None:
        with self._lock:
            completed, self.completed = self.completed, []
            self._add(completed, 1)

    def take_back(self, counted: Iterable[Counted]) -> None:
        with self._lock:
            self.settle()
            self._add(counted, -1)

    def _add(self, counted: Iterable[Counted], sign: int) -> None:
        for key, sent, numel, dense_bytes in counted:
            totals = self._tensors[key]
            if sent is None:
                totals["dense_steps"] += sign
                totals[BYTES] += sign * dense_bytes
                continue
            found, observed = sent.found, sent.observed
            totals["sparse_steps"] += sign
            totals["entries_sent"] += sign * sent.entries
            totals["entries_total"] += sign * numel
            totals[BYTES] += sign * (0 if sent.frame is None else sent.frame.nbytes)
            if found is not None:
                totals["passes"] += sign * found.passes
                if found.is_one_pass:
                    totals["one_pass"] += sign
                if found.is_fallback:
                    totals["fallbacks"] += sign
            if observed is not None:
                sums = zip(self._observed[key], (*observed, sent.entries))
                self._observed[key] = [total + sign * value for total, value in sums]

    def count_bytes(self, kind: str, nbytes: int) -> None:
        """Count bytes given to a collective: of "payload" (messages), "carrier" or "dense"."""
        with self._lock:
            self.bytes[kind] += nbytes

    def count_padding(self, sent: int, received: int) -> None:
        with self._lock:
            self.bytes["padding"] += sent
            self.received_bytes += received

    def all_bytes(self) -> dict[str, int]:
        """Return the bytes "sent" and "received" so far; a sum receives as many as it sends."""
        with self._lock:
            sums = self.bytes["carrier"] + self.bytes["dense"]
            messages = self.bytes["payload"] + self.bytes["padding"]
            return {"sent": sums + messages, "received": sums + self.received_bytes}

    def report(self, density_asked: float | None) -> Report:
        """Return all counters, JSON-able.

        steps : largest number of completed steps of a tensor
        nonfinite_steps : steps without effect, because a rank had NaN or Inf
        sparse_steps, dense_steps : steps of tensors that sent a selection, and that sent all
            entries
        entries_sent, entries_total, density_achieved : of sparse steps, the number of sent entries,
            the number of all entries, and their quotient
        payload_bytes, carrier_bytes, dense_bytes, padding_bytes, bytes_sent : bytes that this rank
            gave to collectives, and their sum; padding keeps the lengths of messages constant
        bytes_received : bytes of the results of all collectives
        passes : counting passes of the selector; a pass over a group counts for each of its tensors
        one_pass : steps of tensors whose entries were all found by the pass that added the gradient
        fallbacks : searches for a threshold that exact top-k ended
        contraction : |not sent|**2 / |accumulated|**2, each summed over sparse steps; None without
            telemetry, and for exchanges that select later
        contraction_bound, contraction_of_bells : 1 - density_achieved, the upper bound for top-k,
            and its square, GaussianK's estimate for bell-shaped distributions
        staleness : mean number of steps for which sent entries had waited, 1 if every step sends
            all entries; estimated from an eighth of the entries where a step sends 512 or more;
            None as for contraction
        tensors : the same by tensor
        """
        self.settle()
        totals: Counter[str] = Counter()
        for counts in self._tensors.values():
            totals.update(counts)
        steps = max(
            (counts["sparse_steps"] + counts["dense_steps"] for counts in self._tensors.values()),
            default=0,
        )
        report: Report = {"steps": steps, "nonfinite_steps": self.nonfinite_steps}
        report |= {"density_asked": density_asked, **_with_density(totals, self._observed.values())}
        for kind in ("payload", "carrier", "dense", "padding"):
            report[f"{kind}_bytes"] = self.bytes[kind]
        report |= {f"bytes_{way}": nbytes for way, nbytes in self.all_bytes().items()}
        report["tensors"] = {
            key: _with_density(counts, [self._observed[key]] if key in self._observed else [])
            for key, counts in self._tensors.items()
        }
        return report


def _with_density(counts: Counter[str], observed: Iterable[Sequence[float]]) -> Report:
    total = counts["entries_total"]
    achieved = counts["entries_sent"] / total if total else None
    kept, accumulated, waited, entries = (sum(values) for values in zip([0.0] * 4, *observed))
    return {
        **{name: counts[name] for name in COUNTED},
        "density_achieved": achieved,
        "contraction": kept / accumulated if accumulated else None,
        "contraction_bound": None if achieved is None else 1 - achieved,
        "contraction_of_bells": None if achieved is None else (1 - achieved) ** 2,
        "staleness": waited / entries if entries else None,
    }
