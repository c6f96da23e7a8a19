"""The page and the JSON of ``python -m benchmarks.journey``."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import hvd_sparse
from benchmarks._ranks import horovod_version
from benchmarks._streams import json_by_line, markdown_table
from benchmarks.journey.recorder import tree
from benchmarks.journey.table import Line
from benchmarks.journey.ways import OPTIONS, RECORDED, WARM, WIDTH

WIDEST = 118
"""Characters of a line of the drawing."""

HEADER = ["tensor", "part", "calls", "files", "changes of file", "depth", "fewest to most calls"]

PAGE = """\
# The way of one tensor through a step

Calls of Python functions whose code is in the package, counted by a profile function in real steps
under Horovod: 2 ranks, `ldte_bs` at density {density:g}, exchange `{exchange}`, engine
`{engine}`, matrices of {width} x {width}. Made by

    python -m benchmarks.journey

with {made_with}.

{warm} steps go by before {recorded} are recorded. The step that is shown has as many calls as most
of them have, and the last column says how far others are from it: a threshold that has to be
searched for takes more calls. A generator that goes on counts as a call, as the profile function
sees it; compiled kernels, C and generated `__init__` are not seen. *changes of file*: of two calls
in a row, how often the second is in another file. *depth*: the most calls open at once.

{goals}

## What is counted

- PyTorch: all that Horovod's `DistributedOptimizer` causes by calling `compress` and `decompress`.
  A step's tensors share some work: who comes first begins the step, who comes last waits asleep for
  the exchanges, and the first result that is asked for takes in all exchanges of the step.
  *alone in its step*: the model has this one tensor, so all of that is its own, the driving of its
  exchange included; that pair is what the goal is about. *of three in a step*: each is a bucket of
  its own (`groups`), so the first `decompress` takes in three exchanges. Every wait is made to end
  after one sleep, so that the number of polls does not depend on the other rank.
- A *dense* tensor is one that stays with Horovod's allreduce: a bias between the compressed
  matrices, neither the first nor the last of its step.
- TensorFlow: the functions that the graph calls (`tf.numpy_function`) for one tensor in a step,
  under `DistributedGradientTape` in a `tf.function`. What runs once, when the graph is traced, is
  not counted.

## The table

{table}

## Who calls whom

A line is a file, with the functions that were entered there and how often; below it, further to the
right, are the files that these functions call into.

{drawings}
"""


def write(lines: Sequence[Line], output: Path) -> None:
    """Write OUTPUT.json, with every call, and OUTPUT.md."""
    output.parent.mkdir(parents=True, exist_ok=True)
    described = [line.describe() for line in lines]
    ways = [
        {
            **{name: told[name] for name in ("framework", "what", "part")},
            "way": [[call.file, call.function, call.caller] for call in line.way],
        }
        for line, told in zip(lines, described)
        if line.goal is None
    ]
    document = json_by_line({"made_with": made_with()}, {"lines": described, "ways": ways})
    output.with_suffix(".json").write_text(document, encoding="utf-8")
    output.with_suffix(".md").write_text(render(lines), encoding="utf-8")


def render(lines: Sequence[Line]) -> str:
    """Return the page."""
    return PAGE.format(
        **OPTIONS,
        width=WIDTH,
        warm=WARM,
        recorded=RECORDED,
        made_with=", ".join(f"{name} {version}" for name, version in made_with().items()),
        goals=goals(lines),
        table=table(lines),
        drawings="\n\n".join(_drawing(line) for line in lines if _is_drawn(line)),
    )


def made_with() -> dict[str, str]:
    """Return what the counts depend on."""
    packages = ("torch", "tensorflow", "numba")
    installed = {package: metadata.version(package) for package in packages}
    installed["horovod"] = horovod_version()
    return {
        "hvd_sparse": hvd_sparse.__version__,
        "python": platform.python_version(),
        **installed,
    }


def goals(lines: Sequence[Line]) -> str:
    """Return a table of what is wanted, and what there is of it."""
    rows = []
    for line in lines:
        if line.goal is not None:
            verdict = "met" if line.is_met else "missed"
            counts = f"{line.counts.calls} calls in {line.counts.files} files"
            rows.append(
                [f"{line.framework}, {line.what}: {line.part}", counts, str(line.goal), verdict]
            )
    return markdown_table(["", "counted", "goal", ""], rows)


def table(lines: Sequence[Line]) -> str:
    """Return all counts, a line each."""
    rows = []
    for line in lines:
        counts = [str(number) for number in line.counts.to_dict().values()]
        spread = f"{line.fewest} to {line.most}"
        rows.append([f"{line.framework}, {line.what}", line.part, *counts, spread])
    return markdown_table(HEADER, rows)


def _is_drawn(line: Line) -> bool:
    """Tell whether a line has a drawing: the tensors that a goal is about, one method at a time."""
    return line.goal is None and " of three " not in line.what


def _drawing(line: Line) -> str:
    drawn = [wrapped for each in tree(line.way) for wrapped in _wrapped(each)]
    return "\n".join(
        [f"### {line.framework}, {line.what}: {line.part}", "", "```text", *drawn, "```"]
    )


def _wrapped(line: str) -> list[str]:
    """Break a long line of the drawing, so that the branches stay where they are."""
    stem = line[: len(line) - len(line.lstrip("│├└─ "))]
    below = stem.replace("├─", "│ ").replace("└─", "  ") + "      "
    return textwrap.wrap(
        line, WIDEST, subsequent_indent=below, break_long_words=False, drop_whitespace=True
    )
