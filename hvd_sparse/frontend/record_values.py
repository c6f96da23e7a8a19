"""The values of a record: of one tensor, of all, and the seconds that spans tell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from hvd_sparse.step.records import TensorStep
from hvd_sparse.step.stats import BYTES
from hvd_sparse.untyped import Report

COUNTS = ("sparse_steps", "dense_steps", "passes", "one_pass", "fallbacks")
SPANS = ("select", "encode", "exchange", "decode")

Span = tuple[str, str, float, float]
"""Kind, tensor or bucket, start and end."""


def of_tensor(
    counted: Mapping[str, int], ticket: TensorStep | None, steps: int, *, has_frames: bool
) -> Report:
    """Return a record's values of one tensor, without times.

    counted : since the last record
    ticket : of its step; None on a dense step
    """
    entries = counted.get("entries_total", 0)
    values: Report = {name: counted.get(name, 0) for name in COUNTS}
    values["density_asked"] = None
    values["density_achieved"] = counted["entries_sent"] / entries if entries else None
    values["bytes_sent"] = counted.get(BYTES, 0) / steps if has_frames else None
    for name in ("bytes_received", "threshold", "residual_norm", "contraction", "staleness"):
        values[name] = None
    if ticket is None or ticket.outgoing is None:
        return values
    sent = ticket.outgoing
    values["density_asked"] = ticket.parts.density
    if has_frames:
        values["bytes_received"] = _received(ticket)
    if sent.found is not None and sent.found.threshold is not None:
        values["threshold"] = _finite(sent.found.threshold)
    if sent.observed is not None:
        kept, there, waited = sent.observed
        values["residual_norm"] = _finite(sent.norm)
        values["contraction"] = kept / there if there else None
        values["staleness"] = waited / sent.entries if sent.entries else None
    return values


def of_all(
    counts: Iterable[Mapping[str, int]], tickets: Iterable[TensorStep], tensors: Iterable[Report]
) -> Report:
    """Return a record's values of all tensors together, without bytes and times."""
    sums = dict.fromkeys((*COUNTS, "entries_sent", "entries_total"), 0)
    for counted in counts:
        for name in sums:
            sums[name] += counted.get(name, 0)
    observed, asked = [], []
    for ticket in tickets:
        sent = ticket.outgoing
        if sent is not None and sent.observed is not None:
            observed.append((*sent.observed, sent.entries))
        if ticket.parts.density is not None:
            asked.append(ticket.parts.density)
    kept, there, waited, entries = (sum(values) for values in zip([0.0] * 4, *observed))
    norms = [each["residual_norm"] for each in tensors if each["residual_norm"] is not None]
    total = sums["entries_total"]
    return {
        **{name: sums[name] for name in COUNTS},
        # Where each tensor has a density of its own, theirs tell.
        "density_asked": asked[0] if len(set(asked)) == 1 else None,
        "density_achieved": sums["entries_sent"] / total if total else None,
        "threshold": None,
        "residual_norm": math.hypot(*norms) if norms else None,
        "contraction": kept / there if there else None,
        "staleness": waited / entries if entries else None,
    }


def _received(ticket: TensorStep) -> int | None:
    """Return the bytes of all ranks' frames of a tensor; None where frames did not arrive."""
    if ticket.position not in ticket.bucket.arrivals:
        return None
    parts = [part for _, part in ticket.bucket.arrivals[ticket.position].parts]
    frames = [part for part in parts if isinstance(part, np.ndarray) and part.dtype == np.uint8]
    return sum(frame.nbytes for frame in frames) if len(frames) == len(parts) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def seconds_of(spans: Iterable[Span]) -> dict[str, dict[str, float]]:
    """Return the seconds of each kind of span, by tensor; those of a message are its members'."""
    found: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in SPANS}
    for kind, whose, start_s, end_s in list(spans):
        # "hvd_sparse.NAME.INDEX: KEY, KEY"
        keys = whose.partition(": ")[2].split(", ") if kind == "exchange" else [whose]
        for key in keys:
            found[kind][key] += end_s - start_s
    return found


def union(spans: Iterable[Span]) -> float | None:
    """Return the seconds in which at least one exchange was under way."""
    under_way = sorted((start, end) for kind, _, start, end in spans if kind == "exchange")
    if not under_way:
        return None
    total, reached = 0.0, under_way[0][0]
    for start_s, end_s in under_way:
        total += max(0.0, end_s - max(start_s, reached))
        reached = max(reached, end_s)
    return total
