"""The summary of a run: a plain-text table of everything sent."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.types import Report

HEADINGS = (
    *("tensor", "entries", "density", "frame bytes", "passes", "one pass", "fallbacks", "dense"),
    *("contraction", "staleness"),
)
RANK_HEADINGS = (
    *("rank", "steps", "density", "bytes sent", "bytes received", "passes", "fallbacks"),
    "non-finite",
)
MOST_ROWS = 40
"""Rows of single tensors; the tensors that send least share one further row."""
UNKNOWN = "-"


def summary_of(stats: Report, entries: dict[str, int], frame_bytes: dict[str, int]) -> str:
    told = sorted(stats["tensors"].items(), key=lambda item: -frame_bytes[item[0]])
    rows = [_row(key, values, entries[key], frame_bytes[key]) for key, values in told[:MOST_ROWS]]
    left = [key for key, _ in told[MOST_ROWS:]]
    if left:
        nbytes = sum(frame_bytes[key] for key in left)
        many = sum(entries[key] for key in left)
        rows.append(_row(f"and {len(left)} more", {}, many, nbytes))
    # Tensors that are never compressed have no counters, so they are not included.
    together = sum(entries[key] for key, _ in told), sum(frame_bytes.values())
    rows.append(_row("total", stats, *together))
    return table(HEADINGS, rows, left=("tensor",), title=_title(stats))


def _title(stats: Report) -> str:
    steps = max(1, stats["steps"])
    title = (
        f"hvd_sparse {stats['name']}: {stats['steps']} steps, {stats['bytes_sent'] / steps:,.0f} "
        f"bytes sent and {stats['bytes_received'] / steps:,.0f} received a step"
    )
    if (hiding := stats.get("hiding")) is not None:
        least = f"{1 / hiding['c_max']:.3g}"
        found = [each["density_asked"] for each in stats["tensors"].values()]
        asked = [density for density in found if density]
        span = f"from {min(asked):.3g} to {max(asked):.3g}" if asked else "of no tensor"
        if hiding["is_measured"]:
            title += f"; densities that hide, as measured: {span}, of at least {least}"
        else:
            title += f"; densities that hide are not measured yet, and {least} until then"
    if (along := stats.get("along_rate")) is not None:
        title += (
            f"; density along the learning rate, {along['density']:.3g} on average over the run, "
            f"as {along['codec']}"
        )
    return title


def summary_of_ranks(all_stats: Sequence[Report]) -> str:
    rows = [
        (
            str(rank),
            str(stats["steps"]),
            _number(stats["density_achieved"], ".3g"),
            f"{stats['bytes_sent']:,}",
            f"{stats['bytes_received']:,}",
            str(stats["passes"]),
            str(stats["fallbacks"]),
            str(stats["nonfinite_steps"]),
        )
        for rank, stats in enumerate(all_stats)
    ]
    return table(RANK_HEADINGS, rows, title="all ranks")


def _row(whose: str, values: Report, entries: int, nbytes: int) -> tuple[str, ...]:
    counts = (values.get(name) for name in ("passes", "one_pass", "fallbacks", "dense_steps"))
    return (
        whose,
        f"{entries:,}",
        _number(values.get("density_achieved"), ".3g"),
        f"{nbytes:,}",
        *(_number(count, "d") for count in counts),
        _number(values.get("contraction"), ".3f"),
        _number(values.get("staleness"), ".1f"),
    )


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return lines of columns as wide as their widest cells, flush right except for ``left``."""
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
