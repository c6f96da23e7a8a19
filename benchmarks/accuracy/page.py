"""Writes the page of the accuracy benchmark from the stored results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks._page import markdown_table
from benchmarks.accuracy.law import fit, times_sent
from benchmarks.accuracy.plan import (
    FITTED,
    OURS,
    PAIRS,
    SEEDS,
    SHORTER,
    lines_of,
    other_steps,
    rules_of,
    samples,
)
from benchmarks.accuracy.rows import (
    OF_MUON,
    PERCENT,
    POINTS,
    Row,
    ahead_of_ours,
    is_ours,
    row_of,
    verdict_of,
)
from benchmarks.accuracy.store import Results
from benchmarks.accuracy.tasks import TASKS, WORKERS
from benchmarks.accuracy.training import Line, Run

OPTIMIZERS = {"adamw": "AdamW", "momentum": "SGD with momentum 0.9", "muon": "Muon"}
WORDS = {
    "dense": "dense",
    "fp16": "fp16 sums",
    "ours": "`ldte_bs`, default density",
    "ours/100": "`ldte_bs` at 1/100",
    "ours/300": "`ldte_bs` at 1/300",
    "ours/200": "`ldte_bs` at 1/200",
    "ours/400": "`ldte_bs` at 1/400",
    "ours/600": "`ldte_bs` at 1/600",
    "ours/1200": "`ldte_bs` at 1/1,200",
    "masked/600": "`ldte_bs` at 1/600, `momentum_correction` with masking",
    "unmasked/600": "`ldte_bs` at 1/600, `momentum_correction` without masking",
    "topk/kept": "`topk` at 0.001, exact values, without `optimizer=`",
    "topk/handed": "`topk` at 0.001, exact values, with `optimizer=`",
    "dgc": "`dgc` at 0.001 after a warm-up",
    "powersgd/1": "PowerSGD, rank 1",
    "powersgd/4": "PowerSGD, rank 4",
    "one_bit_adam": "1-bit Adam",
    "sparse_loco/4/62": "SparseLoCo, 1.5 % every 4 steps",
    "sparse_loco/15/128": "SparseLoCo, 3 % every 15 steps",
    "demo/8": "DeMo, 8 components of 4,096",
}
INTRODUCTION = f"""# Accuracy at 1/600 of the bytes

This page compares the accuracy of dense and compressed training after the same number of steps, and
the bytes that each method sends. It is made by `python -m benchmarks accuracy --output
docs/results`. The command can be stopped and continues later; [accuracy.jsonl](accuracy.jsonl)
holds every run. An [older page](accuracy-methods.md) compares all named methods in shorter
trainings.

**Trainings.** One process simulates {WORKERS} workers. The package's own sessions connect them, so
selection, memory, codec and exchange are the same as on real ranks. The workers divide the examples
of a step among them; therefore dense training gives the same result for any number of workers. The
learning rate falls to 0 along a cosine. AdamW has a weight decay of 0.01. Gradients are not
clipped. The learning rate of every method is the best of a search with the first seed: the search
begins with three rates, each twice the one before, and continues as long as the best rate is the
highest or the lowest. The trainings are short and have not converged, so a method that is better
than dense here can be worse than dense in a long training.

**Worse by** is the difference to dense training with the same seed, as the mean and its standard
error over {SEEDS} seeds: in points of test accuracy, or in percent of the perplexity on held-out
text. A negative number means better than dense.

**Bytes** are the bytes that one worker sends for the compressed tensors, as a fraction of float32's
and a mean over all steps. They count the entries and their encoding. They do not count the headers,
which have 32 bytes or more for each tensor: in networks as small as these, headers are larger than
the entries, but in large networks they do not matter. Every method sends biases, norms and other
small tensors dense, and their bytes are not counted.

**Methods.** `ldte_bs` is the line of the README, `Compression.ldte_bs(params, optimizer=optimizer,
scheduler=scheduler, steps=steps)`. It sends signs with one mean magnitude, and its density follows
the learning rate. Where a budget is named, for example 1/600, the line also has the `density=` that
needs these bytes. PowerSGD, 1-bit Adam, SparseLoCo and DeMo are short implementations of the
formulas in their papers. The last three replace AdamW, so they have no row with SGD. SparseLoCo's
workers train alone between exchanges. The first fifth of 1-bit Adam's steps is dense, and its
servers send as many bytes as its workers do. On Fashion-MNIST, 1-bit Adam diverges soon after its
dense steps, or ends at the accuracy of guessing.
"""


def write_page(folder: Path, results: Results) -> None:
    parts = [INTRODUCTION, _goals(results)]
    for pair in (*PAIRS, *SHORTER):
        parts.append(_section(lines_of(*pair, rules_of(*pair)), results))
    parts += [_diverged(results), _law(results), _real_ranks(results)]
    (folder / "accuracy.md").write_text("\n".join(parts))


def _goals(results: Results) -> str:
    header = ["task", "optimizer", "bytes", "worse by", "", "default: worse by", "bytes"]
    table, better = [], []
    for task, optimizer in (*PAIRS, *SHORTER):
        lines = lines_of(task, optimizer, rules_of(task, optimizer))
        rows = [row for line in lines if (row := row_of(line, results)) is not None]
        by_rule = {row.line.rule: row for row in rows}
        alone = by_rule.get("ours")
        usual = ["", ""] if alone is None else [_difference(alone), _bytes(alone)]
        for rule in OF_MUON if optimizer == "muon" else (OURS,):
            row, where = by_rule.get(rule), [TASKS[task].title, OPTIMIZERS[optimizer]]
            verdict = "not run" if row is None else verdict_of(row)
            table.append([*where, f"1/{rule.partition('/')[2]}", _difference(row), verdict, *usual])
        better += [
            f"* {TASKS[task].title}, {OPTIMIZERS[optimizer]}: {WORDS[row.line.rule]} "
            f"({_difference(row)} at {_bytes(row)}), compared with {WORDS[ours.line.rule]} "
            f"({_difference(ours)} at {_bytes(ours)})"
            for row, ours in ahead_of_ours(rows)
        ]
    rivals = "\n".join(better) if better else "None."
    return (
        "## Goals\n\nAt 1/600 of float32's bytes, the goal is to be worse than dense by at most "
        f"one standard error, {POINTS} points, or {PERCENT} % of perplexity. The goals for Muon "
        "are 1 % at 1/100, 4 % at 1/300, and a better perplexity than dense AdamW. *Default* "
        "is the density that `steps=` gives.\n\n"
        + markdown_table(header, table)
        + "\n\nThese other methods are better than the best row of `ldte_bs` that sends no more "
        f"bytes:\n\n{rivals}\n"
    )


def _section(lines: list[Line], results: Results) -> str:
    first = lines[0]
    task = TASKS[first.task]
    score = "perplexity" if task.is_text else "accuracy"
    rows = sorted(
        (row for line in lines if (row := row_of(line, results)) is not None),
        key=lambda row: -row.part,
    )
    table = [_cells(row) for row in rows]
    there = {row.line for row in rows}
    table += [[WORDS[line.rule], "not run", "", "", "", ""] for line in lines if line not in there]
    numel = sum(p.numel() for p in task.network().parameters())
    examples = f"{task.batch} {'windows of 64 characters' if task.is_text else 'images'}"
    return (
        f"## {task.title}: {OPTIMIZERS[first.optimizer]}\n\n"
        f"{task.words}; {numel:,} parameters, {first.steps:,} steps of {examples}.\n\n"
        + markdown_table(["method", "bytes", score, "worse by", "learning rate", "seeds"], table)
        + "\n"
    )


def _cells(row: Row) -> list[str]:
    is_text = TASKS[row.line.task].is_text
    mean = "diverged" if row.mean is None else f"{row.mean:.3f}" if is_text else f"{row.mean:.2f} %"
    return [
        WORDS[row.line.rule],
        _bytes(row),
        mean,
        _difference(row),
        f"{row.rate:g}{'' if row.is_searched else ', search not finished'}",
        f"{len(row.scores)} of {SEEDS}",
    ]


def _bytes(row: Row) -> str:
    return "1" if row.part == 1 else f"1/{1 / row.part:,.0f}"


def _difference(row: Row | None) -> str:
    if row is None:
        return "not run"
    if row.difference is None or row.mean is None:
        return ""
    error = "" if row.error is None else f" ± {row.error:.2f}"
    return f"{row.difference:+.2f}{error}{' %' if TASKS[row.line.task].is_text else ''}"


def _diverged(results: Results) -> str:
    found = []
    for run, told in sorted(results.items()):
        beside = results.get(replace(run, line=replace(run.line, rule="dense")), {})
        if told["score"] is None and beside.get("score") is not None:
            where = f"{TASKS[run.line.task].title}, {OPTIMIZERS[run.line.optimizer]}"
            found.append(f"* {where}, rate {run.rate:g}: {WORDS[run.line.rule]}")
    listed = "\n".join(found) if found else "None."
    return f"## Runs that diverged at a learning rate at which dense does not\n\n{listed}\n"


def _law(results: Results) -> str:
    fitted = [line for line in lines_of(*FITTED, rules_of(*FITTED)) if is_ours(line)]
    others = [line for pair in PAIRS[:2] for line in other_steps(*pair) if is_ours(line)]
    for task, optimizer in (pair for pair in PAIRS if pair != FITTED):
        others += [
            line for line in lines_of(task, optimizer, rules_of(task, optimizer)) if is_ours(line)
        ]
    rows = {line: row_of(line, results) for line in [*fitted, *others]}
    gaps = {line: row.difference for line, row in rows.items() if row is not None}
    known = [(times_sent(line), gaps[line]) for line in fitted if gaps.get(line) is not None]
    law = fit(known) if len(known) > 3 else None
    table, errors = [], []
    for line in [*fitted, *others]:
        if rows[line] is None and line.steps == TASKS[line.task].steps:
            continue  # its own table says so
        where = [TASKS[line.task].title, OPTIMIZERS[line.optimizer], f"{line.steps:,}"]
        times, is_text = times_sent(line), TASKS[line.task].is_text
        gap = None if law is None or not is_text else law.gap(times)
        said = "" if gap is None else f"{gap:+.2f} %"
        found = gaps.get(line)
        if gap is not None and found is not None and line in others:
            errors.append(abs(gap - found))
        table.append([*where, f"{times:.1f}", _difference(rows[line]), said])
    header = ["task", "optimizer", "steps", "times sent", "worse by", "predicted"]
    text = "There are too few rows of the small GPT with AdamW to fit it.\n\n"
    if law is not None and errors:
        text = (
            f"{law.scale:.1f} % * exp(-times / {law.reach:.2f}) {law.rest:+.1f} %, fitted to the "
            f"{len(known)} rows of the small GPT with AdamW. The other rows of text test it; their "
            f"predictions are off by {median(errors):.1f} percentage points (median).\n\n"
        )
    return (
        "## Density times steps\n\nDensity times steps is the mean number of times that an entry "
        "is sent in a run. The gap to dense training of as many steps as a function of it: "
        + text
        + markdown_table(header, table)
        + "\n"
    )


def _real_ranks(results: Results) -> str:
    table = []
    for run in samples():
        real = results.get(Run(run.line, run.rate, run.seed, is_real=True), {}).get("score")
        simulated = results.get(run, {}).get("score")
        where = [TASKS[run.line.task].title, OPTIMIZERS[run.line.optimizer], WORDS[run.line.rule]]
        table.append(
            [*where, *("not run" if each is None else f"{each:g}" for each in (real, simulated))]
        )
    header = ["task", "optimizer", "method", "real ranks", "simulated"]
    return (
        f"## Real ranks\n\nThe same training on real ranks, with Horovod over Gloo, for "
        f"{samples()[0].line.steps} steps: accuracy in %, or the loss in nats per character. "
        "Real and simulated runs add numbers in a different order, so results differ in the last "
        "bits after one step, and rounding decides which entries reach a threshold later. For "
        "`dgc` on Fashion-MNIST, these differences grow to more than one point of accuracy.\n\n"
        + markdown_table(header, table)
        + "\n"
    )
