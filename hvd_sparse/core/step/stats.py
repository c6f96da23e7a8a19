"""What was really sent: counted where it is handed over, never derived from what was asked."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

COUNTED = (
    "sparse_steps",
    "dense_steps",
    "entries_sent",
    "entries_total",
    "passes",
    "one_pass",
    "fallbacks",
)


class Stats:
    """Counters of one compressor on one rank.

    Tensor counters are of completed steps; byte counters of what was handed to a collective, failed
    steps included.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Counter[str]] = defaultdict(Counter)
        self.bytes: Counter[str] = Counter()
        self.nonfinite_steps = 0
        self._lock = threading.Lock()  # TensorFlow calls from several threads

    def count_tensor(self, key: str, **counts: int) -> None:
        with self._lock:
            self.tensors[key].update(counts)

    def count_bytes(self, kind: str, nbytes: int) -> None:
        """kind: "payload" (packed messages), "carrier" or "dense"."""
        with self._lock:
            self.bytes[kind] += nbytes

    def report(self, density_asked: float | None) -> dict[str, Any]:
        """JSON-able.

        steps : the most steps any tensor has completed
        nonfinite_steps : steps that left no trace, as some rank had NaN or Inf in them
        sparse_steps, dense_steps : tensor-steps that sent a selection; that sent everything
        entries_sent, entries_total, density_achieved : over sparse tensor-steps; their quotient
        payload_bytes, carrier_bytes, dense_bytes, bytes_sent : handed to collectives by this rank;
            their sum
        passes : counting passes of the selector; those over a group count for each of its tensors
        one_pass : tensor-steps whose entries were all caught by the pass that added the gradient
        fallbacks : searches that exact top-k ended
        tensors : the same a tensor
        """
        totals: Counter[str] = Counter()
        for counts in self.tensors.values():
            totals.update(counts)
        steps = max(
            (counts["sparse_steps"] + counts["dense_steps"] for counts in self.tensors.values()),
            default=0,
        )
        report: dict[str, Any] = {"steps": steps, "nonfinite_steps": self.nonfinite_steps}
        report |= {"density_asked": density_asked, **_with_density(totals)}
        for kind in ("payload", "carrier", "dense"):
            report[f"{kind}_bytes"] = self.bytes[kind]
        report["bytes_sent"] = sum(self.bytes.values())
        report["tensors"] = {key: _with_density(counts) for key, counts in self.tensors.items()}
        return report


def _with_density(counts: Counter[str]) -> dict[str, Any]:
    total = counts["entries_total"]
    achieved = counts["entries_sent"] / total if total else None
    return {**{name: counts[name] for name in COUNTED}, "density_achieved": achieved}
