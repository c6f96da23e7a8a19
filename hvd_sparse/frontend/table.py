"""Tables as plain text, which need no package."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return lines of columns that are as wide as their widest cell.

    Parameters
    ----------
    headings : of the columns
    rows : of as many cells
    left : headings of the columns that hold words; the others hold numbers, and end in one line
    title : of a line above
    """
    widths = [max(map(len, cells)) for cells in zip(headings, *rows)]
    rule = ["-" * width for width in widths]
    lines = [title] if title else []
    for cells in (headings, rule, *rows):
        put = [
            cell.ljust(width) if heading in left else cell.rjust(width)
            for heading, cell, width in zip(headings, cells, widths)
        ]
        lines.append(GAP.join(put).rstrip())
    return "\n".join(lines)
