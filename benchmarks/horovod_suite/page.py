"""What is printed and written of the suite."""

from __future__ import annotations

from typing import Any

from benchmarks._streams import markdown_table
from benchmarks.horovod_suite.reasons import last_line, reason_for


def compared(outcomes: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return one row a program or test: what it came to both ways, and why ours failed.

    A row is "ours" where ``Compression.none`` passes and the compressor does not.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for each in outcomes:
        row = rows.setdefault((each["path"], each["name"]), {"none": "", "sparse": "", "why": ""})
        side = "none" if each["way"] == "none" else "sparse"
        row.update({side: each["end"], f"{side}_words": each["words"]})
    found = []
    for (path, name), row in rows.items():
        is_ours = row["none"] == "passed" and row["sparse"] not in ("passed", "")
        words = row.get("sparse_words", "") if is_ours else row.get("none_words", "")
        known = reason_for(words) if is_ours else None
        if row["none"] not in ("passed", "skipped") or is_ours:
            row["why"] = known or last_line(words)
        found.append({**row, "path": path, "name": name, "ours": is_ours, "limit": known})
    return found


def verdict(rows: list[dict[str, Any]]) -> str:
    """Return what it comes to, in one line."""
    dense = [row for row in rows if row["none"] == "passed" and row["sparse"]]
    both = [row for row in dense if row["sparse"] == "passed"]
    ours = [row for row in rows if row["ours"]]
    unknown = [row for row in ours if not row["limit"]]
    limits = f"{len(ours) - len(unknown)} by documented limits, {len(unknown)} otherwise"
    return (
        f"of {len(dense)} that pass with Compression.none, {len(both)} pass with the compressor"
        f" and {len(ours)} fail: {limits}"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows of one kind as Markdown."""
    body = [
        [
            f"`{row['path'].rpartition('/')[2]}`" + (f" `{row['name']}`" if row["name"] else ""),
            row["none"],
            row["sparse"],
            row["why"].replace("|", "\\|")[:200],
        ]
        for row in rows
    ]
    return markdown_table(["", "`Compression.none`", "with the compressor", "why"], body)


def lacking(known: list[str], outcomes: list[dict[str, str]]) -> list[str]:
    """Return the files of the catalogue that were not run both ways."""
    ways = {(each["path"], each["way"] == "none") for each in outcomes}
    return [path for path in known if not {(path, True), (path, False)} <= ways]


def render(found: dict[str, Any], missing: list[str]) -> str:
    """Return the page.

    Parameters
    ----------
    found : the record
    missing : files that were not run both ways
    """
    unrun = ", ".join(f"`{path}`" for path in missing)
    left_out = f"\nNot run both ways yet: {unrun}.\n" if missing else ""
    rows = compared(found["outcomes"])
    programs = [row for row in rows if not row["name"]]
    tests = [row for row in rows if row["name"]]
    made = ", ".join(f"{key} {value}" for key, value in found["made_with"].items())
    return f"""# Horovod's own examples and tests

Programs of a checkout of Horovod 0.28.1 on {found["ranks"]} ranks under Gloo, as they are and
with the two lines changed: {verdict(rows)}.

Made by `scripts/horovod-suite SOURCES` with {made}. Nothing of Horovod is kept here: a compressor
is put into a copy wherever a program makes Horovod's optimizer or tape, and numbers of steps are
made smaller. Replaced are {"; ".join(found["replaced"])}. `keras` is Keras 2 (tf-keras), as it was
when Horovod 0.28.1 was released.

## Examples

With `{found["examples"]}`; `optimizer=` where Horovod wraps one, and the elastic ones give the
compressor to their state, as [elastic runs](../guide/production.md#elastic) want it. What passes
has run to its end on all ranks.

{table(programs)}
{left_out}
## Tests

Those in which `DistributedOptimizer` or `DistributedGradientTape` is made, with
`{found["tests"]}`: those of a file in one launch, and what did not pass there in one of its own. At
density 1 sparse messages would be longer, and the compressor lets Horovod sum the tensors: what is
tried is how it is made, named and called. That everything sent sparsely is the dense average is
among [the laws](../laws.md). A test that is skipped says so itself: no GPU, or TensorFlow 1.

{table(tests)}
"""
