"""Summarizes the ranks' rows: medians and quartiles, relative to the floor of the same round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._page import Quartiles
from benchmarks.step.meter import PARTS

PAGE_BYTES = 4096
OF_THE_SLOWEST = ("wall", "floor_wall")
"""Columns whose value is that of the slowest rank. All others have the mean over the ranks."""

Row = dict[str, float]


@dataclass(frozen=True)
class Summary:
    """Figures of one model with one method on a number of ranks. Most are relative to the floor."""

    model: str
    method: str
    ranks: int
    rounds: int
    floor_ms: Quartiles  # processor time of residual.add_ of all tensors
    work_ms: Quartiles  # of the training thread in compress and decompress
    work: Quartiles
    parts: dict[str, Quartiles]  # of a traced step; "python" is the rest
    process: Quartiles  # processor time of the whole process
    wall: Quartiles  # until the last result is there
    faults: Quartiles
    fault_share: float  # beside the pages that the gradients fill
    sparse_us: Quartiles | None  # both calls of a compressed tensor, or of a dense one
    dense_us: Quartiles | None
    one_pass: float | None  # share of selections that read the tensor once


def merged(by_rank: Sequence[Sequence[Row]]) -> list[Row]:
    rows = []
    for together in zip(*by_rank):
        row = {}
        for name in together[0]:
            values = [each[name] for each in together]
            row[name] = max(values) if name in OF_THE_SLOWEST else float(np.mean(values))
        rows.append(row)
    return rows


def summarize(
    method: str, ranks: int, by_rank: Sequence[dict[str, Any]], rows: Sequence[Row]
) -> Summary:
    def quartiles(of: Callable[[Row], float]) -> Quartiles:
        return Quartiles.of(np.array([of(row) for row in rows]))

    def of_a_pair(kind: str) -> Quartiles | None:
        if not rows[0][f"{kind}_tensors"]:
            return None
        return quartiles(lambda row: 1e6 * row[kind] / row[f"{kind}_tensors"])

    parts = {}
    if all(part in rows[0] for part in PARTS):
        for part in PARTS:
            parts[part] = quartiles(lambda row, part=part: row[part] / row["floor"])
    sent = by_rank[0]["sent"]
    faults = quartiles(lambda row: row["faults"])
    return Summary(
        model=by_rank[0]["model"],
        method=method,
        ranks=ranks,
        rounds=len(rows),
        floor_ms=quartiles(lambda row: 1e3 * row["floor"]),
        work_ms=quartiles(lambda row: 1e3 * _work(row)),
        work=quartiles(lambda row: _work(row) / row["floor"]),
        parts=parts,
        process=quartiles(lambda row: row["process"] / row["floor"]),
        wall=quartiles(lambda row: row["wall"] / row["floor_wall"]),
        faults=faults,
        fault_share=faults.median * PAGE_BYTES / by_rank[0]["gradient_bytes"],
        sparse_us=of_a_pair("sparse"),
        dense_us=of_a_pair("dense"),
        one_pass=sent["one_pass"] / sent["sparse_steps"] if sent.get("sparse_steps") else None,
    )


def _work(row: Row) -> float:
    return row["compress"] + row["decompress"]
