"""The page and the picture of ``scripts/bench accuracy``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks._accuracy_goals import goals_table
from benchmarks._accuracy_lines import Results, Row
from benchmarks._accuracy_matrix import OPTIMIZERS, SEEDS, SHORT, WORKERS, Wanted
from benchmarks._accuracy_overview import overview_of, workers_of
from benchmarks._accuracy_picture import draw
from benchmarks._accuracy_runs import Line, Run
from benchmarks._accuracy_tasks import TASKS
from benchmarks._streams import markdown_table
from hvd_sparse.density_text import spell_density

TITLES = {
    "fashion_mnist": "Fashion-MNIST, a CNN of 478,766 parameters",
    "lstm": "Characters of the King James Bible, an LSTM of 222,816 parameters",
    "gpt": "The same text, a GPT of two blocks and 116,576 parameters",
    "digits": "scikit-learn's digits",
}
OURS = ("dense", "ldte_bs")
"""Methods whose missing lines are named one by one."""
INTRODUCTION = """# Accuracy, with the optimizers people use

What training reaches when entries are rare, beside dense, with the optimizer handed over
(`optimizer=`) and with the optimizer kept (plain error feedback). Made by `scripts/bench
accuracy`, which goes on where it was stopped; [accuracy.json](accuracy.json) has every run. What
was tried on the way to these memories, and dropped, is on [a page of its own](accuracy-ways.md).
DistributedDataParallel on real ranks, with PyTorch's own fp16 and PowerSGD hooks beside ours, is on
[another](ddp-accuracy.md).

Workers are simulated in one process, with the package's sessions between them. Lines take the same
examples, 64 images or 16 windows of 64 characters a step, which the workers share; so dense is one
training for any number of workers. LDTE-BS is trained for 1,200 steps, and for more where that
misses a goal; all methods side by side, and more workers, for {SHORT}. Rates fall to 0 along a
cosine, AdamW decays by 0.01, and no gradient is clipped. The rate of every line, dense or sparse,
is searched alike with its first seed: three of a ladder of doubling rates, and further ones while
the best is at an end. *Worse by* is paired with dense seed by seed, with its standard error: points
of test accuracy, or percent of perplexity on text that was held out; less than nothing is better
than dense. Lines with a *warm-up*, in the short trainings all at density 0.001, send 0.25, 0.0625,
0.0156 and 0.0039 of the entries over the first quarter of their steps; of these the first run
dense, which is fewer bytes. *Sent* has the other steps, *bytes a step* all of them: in runs as
short as these the warm-up is most of them, and 0.01 without one sends less. *Dense's end after* is
the step at which the mean curve first is where dense's ends.

The runs are short, a minute or less each: nothing has converged, a line that is better than dense
need not stay so in a long training, and one that is worse may catch up. The small networks are hard
on density 0.001: of their smaller tensors it sends four entries a step.
"""


def table_of(rows: Sequence[Row]) -> str:
    """Return the rows of one task in Markdown."""
    header = ["optimizer", "run", "density", "workers", "steps", "sent", "rate", "seeds"]
    is_text = any(TASKS[row.line.task].is_text for row in rows)
    header += ["perplexity" if is_text else "accuracy", "worse by", "dense's end after"]
    header += ["bytes a step"]
    return markdown_table(header, [_cells(row, _end_of_dense(row, rows)) for row in rows])


def _cells(row: Row, end: float | None) -> list[str]:
    line, is_text = row.line, TASKS[row.line.task].is_text
    error = "" if row.error is None else f" ± {row.error:.2f}"
    beside = "" if row.difference is None else f"{row.difference:+.2f}{error}"
    return [
        line.optimizer,
        str(line),
        f"{line.density or ''}",
        "" if line.workers == 1 else str(line.workers),
        f"{line.steps:,}",
        "" if row.density is None else f"{row.density:.4f}",
        f"{row.rate:g}",
        str(len(row.scores)),
        f"{row.mean:.3f}" if is_text else f"{row.mean:.2f} %",
        f"{beside}{' %' if beside and is_text else ''}",
        "" if end is None else _reached(row, end, is_text=is_text),
        f"{row.nbytes:,.0f}",
    ]


def _end_of_dense(row: Row, rows: Sequence[Row]) -> float | None:
    """Return the last score of dense's curve."""
    for other in rows:
        is_pair = other.line.method == "dense" and row.line.method != "dense"
        if is_pair and _shared(other.line) == _shared(row.line):
            return other.curve[-1][1]
    return None


def _shared(line: Line) -> tuple[str, str, int, int]:
    """Return what a line has in common with the dense line beside it."""
    return line.task, line.optimizer, line.batch, min(line.steps, TASKS[line.task].steps)


def _reached(row: Row, end: float, *, is_text: bool) -> str:
    """Return the first step of the mean curve that is as good as this; "never" where none is."""
    for step, score in row.curve:
        if (score <= end) if is_text else (score >= end):
            return f"{step:,}"
    return "never"


def write_page(
    folder: Path, rows: Sequence[Row], missing: Sequence[Wanted], results: Results
) -> None:
    """Write accuracy.md and accuracy.png."""
    parts = [INTRODUCTION.format(SHORT=SHORT), "![Learning curves](accuracy.png)\n"]
    parts += ["## The goals\n", goals_table(rows)]
    for task in sorted({row.line.task for row in rows}, key=list(TITLES).index):
        mine = [row for row in rows if row.line.task == task and not row.line.is_real]
        ordered = sorted(mine, key=lambda row: OPTIMIZERS.index(row.line.optimizer))
        whole = [row for row in ordered if row.line.steps >= TASKS[task].steps]
        short = [row for row in ordered if row.line.steps < TASKS[task].steps]
        parts += [f"## {TITLES[task]}\n", table_of(whole) + "\n" if whole else ""]
        parts += [overview_of(short), table_of(short) + "\n" if short else ""]
    parts += [workers_of(rows), _behind(rows), _real_ranks(results), _missing(rows, missing)]
    (folder / "accuracy.md").write_text("\n".join(part for part in parts if part))
    draw(rows, folder / "accuracy.png")


def _behind(rows: Sequence[Row]) -> str:
    """Return the lines that are clearly worse than dense after as many steps."""
    found: dict[str, list[str]] = {}
    for row in rows:
        line = row.line
        if row.difference is None or row.error is None or line.is_real:
            continue
        if row.difference > 2 * row.error:
            words = f"{_short(line)} ({row.difference:.2f} ± {row.error:.2f})"
            found.setdefault(f"{line.task}, {line.optimizer}", []).append(words)
    text = "## Where it does not pay in steps\n\n"
    if not found:
        return text + "No line is worse than dense by more than two standard errors.\n"
    lines = [f"* {where}: {'; '.join(lines)}" for where, lines in found.items()]
    return (
        text + "Lines that end worse than dense by more than two standard errors, and by how much: "
        "here the bytes that are not sent cost steps.\n\n" + "\n".join(lines) + "\n"
    )


def _real_ranks(results: Results) -> str:
    """Return the runs on real ranks, each beside the simulated one of its rate and seed."""
    rows = []
    for run, real in results.items():
        simulated = results.get(Run(replace(run.line, is_real=False), run.rate, run.seed))
        if run.line.is_real and simulated is not None:
            line = run.line
            what = f"{line.task}, {line.optimizer}, {line}, density {spell_density(line.density)}"
            cells = [f"{real['score']:g}", f"{simulated['score']:g}"]
            rows.append([what, f"{line.workers}", f"{line.steps:,}", f"{run.rate:g}", *cells])
    if not rows:
        return ""
    header = ["run, first seed", "ranks", "steps", "rate", "real ranks", "simulated"]
    return (
        "## On real ranks\n\nThe same training by Horovod under Gloo, on this machine: accuracy in "
        "%, or the loss in nats a character.\n\n" + markdown_table(header, rows) + "\n"
    )


def _missing(rows: Sequence[Row], missing: Sequence[Wanted]) -> str:
    """Return what the page has not, in words."""
    fewer = sum(len(row.scores) < SEEDS for row in rows)
    if not missing and not fewer:
        return ""
    text = (
        f"## What is missing\n\n{fewer} lines have fewer than {SEEDS} seeds; a column says how "
        "many a line has.\n"
    )
    for task in dict.fromkeys(each.line.task for each in missing):
        lines = [each.line for each in missing if each.line.task == task]
        text += f"\nOf `{task}` {len(lines)} lines were not run:\n\n"
        for optimizer in dict.fromkeys(line.optimizer for line in lines):
            mine = [line for line in lines if line.optimizer == optimizer]
            names = [_short(line) if line.method in OURS else line.method for line in mine]
            text += f"* {optimizer}: {'; '.join(dict.fromkeys(names))}\n"
    return text


def _short(line: Line) -> str:
    """Return a line in words, without its task and optimizer."""
    density = f" at {spell_density(line.density)}" if line.density else ""
    workers = "" if line.workers in (1, WORKERS) else f" with {line.workers} workers"
    more = f" for {line.steps:,} steps" if line.steps != TASKS[line.task].steps else ""
    return f"{line}{density}{workers}{more}"
