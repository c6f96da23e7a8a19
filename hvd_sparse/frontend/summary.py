"""The summary of a run: plain-text tables of the counters by tensor and by rank."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.types import Report

Columns = dict[str, tuple[str, str]]
"""Maps the heading of a column to the name of a counter and its format specification."""
COLUMNS: Columns = {
    "entries": ("entries", ","),
    "density": ("density_achieved", ".3g"),
    "frame bytes": ("frame_bytes", ","),
    "passes": ("passes", "d"),
    "one pass": ("one_pass", "d"),
    "fallbacks": ("fallbacks", "d"),
    "dense": ("dense_steps", "d"),
    "contraction": ("contraction", ".3f"),
    "staleness": ("staleness", ".1f"),
}
RANK_COLUMNS: Columns = {
    "steps": ("steps", "d"),
    "density": ("density_achieved", ".3g"),
    "bytes sent": ("bytes_sent", ","),
    "bytes received": ("bytes_received", ","),
    "passes": ("passes", "d"),
    "fallbacks": ("fallbacks", "d"),
    "non-finite": ("nonfinite_steps", "d"),
}
MOST_ROWS = 40
"""Largest number of tensors with a row each; one row sums up those that send the fewest bytes."""
UNKNOWN = "-"


def summary_of(stats: Report, entries: dict[str, int], frame_bytes: dict[str, float]) -> str:
    told = sorted(stats["tensors"].items(), key=lambda item: -frame_bytes[item[0]])

    def row(whose: str, values: Report, keys: list[str]) -> list[str]:
        sizes = {
            "entries": sum(map(entries.__getitem__, keys)),
            "frame_bytes": sum(map(frame_bytes.__getitem__, keys)),
        }
        return [whose, *_cells({**values, **sizes}, COLUMNS)]

    rows = [row(key, values, [key]) for key, values in told[:MOST_ROWS]]
    left = [key for key, _ in told[MOST_ROWS:]]
    if left:
        rows.append(row(f"and {len(left)} more", {}, left))
    # Tensors that are never compressed have no counters, so they are not included.
    rows.append(row("total", stats, [key for key, _ in told]))
    return table(("tensor", *COLUMNS), rows, left=("tensor",), title=_title(stats))


def _cells(values: Report, columns: Columns) -> list[str]:
    found = [(values.get(name), form) for name, form in columns.values()]
    return [UNKNOWN if value is None else format(value, form) for value, form in found]


def _title(stats: Report) -> str:
    # No bytes per step, because steps without compressed tensors send bytes, but are not counted.
    title = (
        f"hvd_sparse {stats['name']}, since it was made: {stats['steps']:,} steps with compressed "
        f"tensors; {stats['bytes_sent']:,} bytes sent and {stats['bytes_received']:,} received"
    )
    if (hiding := stats.get("hiding")) is not None:
        least = f"{1 / hiding['c_max']:.3g}"
        found = [each["density_asked"] for each in stats["tensors"].values()]
        asked = [density for density in found if density]
        span = f"from {min(asked):.3g} to {max(asked):.3g}" if asked else "for no tensor"
        if hiding["is_measured"]:
            title += f"; measured densities that hide: {span}, at least {least}"
        else:
            title += f"; densities that hide are not measured yet, and {least} is used until then"
    if (along := stats.get("along_rate")) is not None:
        title += (
            f"; density along the learning rate: {along['density']:.3g} on average over the run, "
            f"with codec {along['codec']}"
        )
    return title


def summary_of_ranks(all_stats: Sequence[Report]) -> str:
    rows = [[str(rank), *_cells(stats, RANK_COLUMNS)] for rank, stats in enumerate(all_stats)]
    return table(("rank", *RANK_COLUMNS), rows, title="all ranks")


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return a table as text. Columns whose headings are in ``left`` are aligned to the left, and
    all others to the right."""
    widths = [max(map(len, cells)) for cells in zip(headings, *rows)]
    rule = ["-" * width for width in widths]
    lines = [title] if title else []
    for cells in (headings, rule, *rows):
        put = [
            cell.ljust(width) if heading in left else cell.rjust(width)
            for heading, cell, width in zip(headings, cells, widths)
        ]
        lines.append("  ".join(put).rstrip())
    return "\n".join(lines)
