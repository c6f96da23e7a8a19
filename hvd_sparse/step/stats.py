"""Counters of the bytes, entries and steps of one rank, counted where data is handed over."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from hvd_sparse.exchanges.members import Observed
from hvd_sparse.untyped import Report

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
"""Bytes of a tensor's frames, and of what it sent dense; of no use where exchanges encode."""


Lock = AbstractContextManager[bool]


class Stats:
    """Counters of one compressor on one rank.

    Tensor counters are of completed steps; byte counters of what was handed to a collective, failed
    steps included.

    lock : under which the counters change, where others change them too
    """

    def __init__(self, lock: Lock | None = None) -> None:
        self.tensors: dict[str, Counter[str]] = defaultdict(Counter)
        self.bytes: Counter[str] = Counter()
        self.received_bytes = 0
        """Bytes received by the exchanges' collectives; changed under the lock."""
        self._observed: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        self.nonfinite_steps = 0
        # TensorFlow calls from several threads
        self._lock: Lock = threading.RLock() if lock is None else lock

    def count_tensor(
        self, key: str, counts: Mapping[str, int], observed: Observed | None, *, sign: int = 1
    ) -> None:
        """Add to a tensor's counters (``COUNTED``) and to telemetry's sums; a sign of -1 undoes
        this."""
        with self._lock:
            totals = self.tensors[key]
            for name, count in counts.items():
                totals[name] += sign * count
            if observed is not None:
                kept, there, waited, sent = self._observed[key]
                self._observed[key] = [
                    kept + sign * observed.kept_squared,
                    there + sign * observed.accumulated_squared,
                    waited + sign * observed.waited,
                    sent + sign * counts["entries_sent"],
                ]

    def count_bytes(self, kind: str, nbytes: int) -> None:
        """Count bytes that were handed to a collective.

        kind : "payload" (packed messages), "carrier" or "dense"
        """
        with self._lock:
            self.bytes[kind] += nbytes

    def count_padding(self, sent: int, received: int) -> None:
        """Count the bytes of padding and block headers."""
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
        """JSON-able.

        steps : the most steps any tensor has completed
        nonfinite_steps : steps that left no trace, as some rank had NaN or Inf in them
        sparse_steps, dense_steps : tensor-steps that sent a selection; that sent everything
        entries_sent, entries_total, density_achieved : over sparse tensor-steps; their quotient
        payload_bytes, carrier_bytes, dense_bytes, padding_bytes, bytes_sent : handed to collectives
            by this rank; their sum.  Padding keeps the lengths of messages the same from step to
            step
        bytes_received : what the collectives brought, what sums brought included
        passes : counting passes of the selector; those over a group count for each of its tensors
        one_pass : tensor-steps whose entries were all caught by the pass that added the gradient
        fallbacks : searches that exact top-k ended
        contraction : |not sent|**2 / |accumulated|**2, of the sums over sparse tensor-steps; with
            telemetry, else None
        contraction_bound, contraction_of_bells : 1 - density_achieved, which no top-k exceeds; and
            its square, GaussianK's estimate for bell-shaped entries
        staleness : for how many steps entries that are sent had waited, on average (where 512 or
            more leave at a step, an eighth of them stands for all); 1 if all are
            sent at each step; with telemetry, else None.  Of exchanges that decide later what
            leaves, neither is known
        tensors : the same a tensor
        """
        totals: Counter[str] = Counter()
        for counts in self.tensors.values():
            totals.update(counts)
        steps = max(
            (counts["sparse_steps"] + counts["dense_steps"] for counts in self.tensors.values()),
            default=0,
        )
        report: Report = {"steps": steps, "nonfinite_steps": self.nonfinite_steps}
        report |= {"density_asked": density_asked, **_with_density(totals, self._observed.values())}
        for kind in ("payload", "carrier", "dense", "padding"):
            report[f"{kind}_bytes"] = self.bytes[kind]
        report |= {f"bytes_{way}": nbytes for way, nbytes in self.all_bytes().items()}
        report["tensors"] = {
            key: _with_density(counts, [self._observed[key]] if key in self._observed else [])
            for key, counts in self.tensors.items()
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
