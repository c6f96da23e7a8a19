"""The page of the accuracy bench, made of its store alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
    "ours": "`ldte_bs`, told the steps alone",
    "ours/100": "`ldte_bs` at 1/100",
    "ours/300": "`ldte_bs` at 1/300",
    "ours/200": "`ldte_bs` at 1/200",
    "ours/400": "`ldte_bs` at 1/400",
    "ours/600": "`ldte_bs` at 1/600",
    "ours/1200": "`ldte_bs` at 1/1,200",
    "masked/600": "`ldte_bs` at 1/600, `momentum_correction` with masking",
    "unmasked/600": "`ldte_bs` at 1/600, `momentum_correction` without masking",
    "topk/kept": "`topk` at 0.001, exact values, optimizer kept",
    "topk/handed": "`topk` at 0.001, exact values",
    "dgc": "`dgc` at 0.001 behind a warm-up",
    "powersgd/1": "PowerSGD, rank 1",
    "powersgd/4": "PowerSGD, rank 4",
    "one_bit_adam": "1-bit Adam",
    "sparse_loco/4/62": "SparseLoCo, 1.5 % every 4 steps",
    "sparse_loco/15/128": "SparseLoCo, 3 % every 15 steps",
    "demo/8": "DeMo, 8 components of 4,096",
}
INTRODUCTION = f"""# Accuracy at a six-hundredth of the bytes

What training reaches beside dense in as many steps, and what each way sends for it. Made by
`python -m benchmarks accuracy --output docs/results`, which goes on where it was stopped and ends;
[accuracy.jsonl](accuracy.jsonl) has every run. An [older page](accuracy-methods.md) has every named
method in shorter trainings.

{WORKERS} workers are simulated in one process, with the package's own sessions between them:
selection, memory, codec and exchange are those of real ranks. They share the examples of a step, so
that dense is one training for any number of workers. Rates fall to 0 along a cosine, AdamW decays
by 0.01, no gradient is clipped. The learning rate of every line is searched alike, with its first
seed: three of a ladder of doubling rates, and further ones while the best is at an end. *Worse by*
is paired with dense, seed by seed, with its standard error over {SEEDS} seeds: points of test
accuracy, or percent of perplexity on text that was held out; less than nothing is better than
dense.

*Bytes* are those of the tensors that are compressed, as one worker sends them, on average over all
steps: entries and what encodes them, without the 32 bytes and more of headers that a tensor has
(which outweigh the entries of networks as small as these, and vanish in large ones). Biases, norms
and other small tensors go dense by every rule, and are not counted.

`ldte_bs` is the line of the README, `Compression.ldte_bs(params, optimizer=optimizer,
scheduler=scheduler, steps=steps)`: signs with one mean, the density along the learning rate; at a
budget it is also told the density. PowerSGD, 1-bit Adam, SparseLoCo and DeMo are short rules made
after their papers' formulas; the last three take the place of AdamW, and have no line with SGD.
SparseLoCo's workers train by themselves between exchanges; 1-bit Adam begins with a fifth of dense
steps, and its servers send as much again as its workers.

The runs are short: nothing has converged, and a line that is better than dense need not stay so.
"""


def write_page(folder: Path, results: Results) -> None:
    parts = [INTRODUCTION, _goals(results)]
    for pair in (*PAIRS, *SHORTER):
        parts.append(_section(lines_of(*pair, rules_of(*pair)), results))
    parts += [_diverged(results), _law(results), _real_ranks(results)]
    (folder / "accuracy.md").write_text("\n".join(parts))


def _goals(results: Results) -> str:
    header = ["task", "optimizer", "1/600: worse by", "", "told the steps alone: worse by", "bytes"]
    table, better = [], []
    for task, optimizer in (*PAIRS, *SHORTER):
        lines = lines_of(task, optimizer, rules_of(task, optimizer))
        rows = [row for line in lines if (row := row_of(line, results)) is not None]
        by_rule = {row.line.rule: row for row in rows}
        at_budget, alone = by_rule.get(OURS), by_rule.get("ours")
        table.append(
            [
                TASKS[task].title,
                OPTIMIZERS[optimizer],
                _difference(at_budget),
                "not run" if at_budget is None else verdict_of(at_budget),
                _difference(alone),
                "" if alone is None else _bytes(alone),
            ]
        )
        better += [
            f"* {TASKS[task].title}, {OPTIMIZERS[optimizer]}: {WORDS[row.line.rule]} "
            f"({_difference(row)} at {_bytes(row)}) before {WORDS[ours.line.rule]} "
            f"({_difference(ours)} at {_bytes(ours)})"
            for row, ours in ahead_of_ours(rows)
        ]
    rivals = "\n".join(better) if better else "None of the lines that were run."
    return (
        "## Is it as good as dense?\n\nAt 1/600 of float32's bytes: within one standard error of "
        f"dense, or {POINTS} points, or {PERCENT} % of perplexity. Of Muon less was hoped for: 1 % "
        "at 1/100, 4 % at 1/300, and better than dense AdamW.\n\n"
        + markdown_table(header, table)
        + "\n\nBetter than ours with at least as many bytes, `ldte_bs` with the best of its lines "
        f"that send no more:\n\n{rivals}\n"
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
        + markdown_table(["rule", "bytes", score, "worse by", "rate", "seeds"], table)
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
        f"{row.rate:g}{'' if row.is_searched else ', not searched to its end'}",
        f"{len(row.scores)} of {SEEDS}",
    ]


def _bytes(row: Row) -> str:
    return "1" if row.part == 1 else f"1/{1 / row.part:,.0f}"


def _difference(row: Row | None) -> str:
    if row is None:
        return "not run"
    if row.difference is None:
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
    listed = "\n".join(found) if found else "No run has."
    return f"## Diverged at a rate at which dense trains\n\n{listed}\n"


def _law(results: Results) -> str:
    fitted = [line for line in lines_of(*FITTED, rules_of(*FITTED)) if is_ours(line)]
    others = [line for pair in PAIRS[:2] for line in other_steps(*pair) if is_ours(line)]
    for task, optimizer in (pair for pair in PAIRS if pair != FITTED):
        others += [
            line for line in lines_of(task, optimizer, rules_of(task, optimizer)) if is_ours(line)
        ]
    rows = {line: row_of(line, results) for line in [*fitted, *others]}
    known = [(times_sent(line), rows[line].difference) for line in fitted if _has_gap(rows[line])]
    law = fit(known) if len(known) > 3 else None
    table = []
    for line in [*fitted, *others]:
        if rows[line] is None and line.steps == TASKS[line.task].steps:
            continue  # its own table says so
        where = [TASKS[line.task].title, OPTIMIZERS[line.optimizer], f"{line.steps:,}"]
        times, is_text = times_sent(line), TASKS[line.task].is_text
        said = "" if law is None or not is_text else f"{law.gap(times):+.2f} %"
        table.append([*where, f"{times:.1f}", _difference(rows[line]), said])
    header = ["task", "optimizer", "steps", "times sent", "worse by", "by the law"]
    text = "Too few lines of the small GPT with AdamW were run to fit it.\n\n"
    if law is not None:
        text = (
            f"{law.scale:.1f} % * exp(-times / {law.reach:.2f}) {law.rest:+.1f} %, fitted on the "
            f"{len(known)} lines of the small GPT with AdamW, and judged by the others.\n\n"
        )
    return (
        "## The law of density and steps\n\nWhat counts is how often an entry is sent in a run, "
        "density times steps. Beside dense of as many steps: "
        + text
        + markdown_table(header, table)
        + "\n"
    )


def _has_gap(row: Row | None) -> bool:
    return row is not None and row.difference is not None


def _real_ranks(results: Results) -> str:
    table = []
    for run in samples():
        real = results.get(Run(run.line, run.rate, run.seed, is_real=True), {}).get("score")
        simulated = results.get(run, {}).get("score")
        where = [TASKS[run.line.task].title, OPTIMIZERS[run.line.optimizer], WORDS[run.line.rule]]
        table.append(
            [*where, *("not run" if each is None else f"{each:g}" for each in (real, simulated))]
        )
    header = ["task", "optimizer", "rule", "real ranks", "simulated"]
    return (
        f"## On real ranks\n\nThe same training by Horovod under Gloo, {samples()[0].line.steps} "
        "steps: accuracy in %, or the loss in nats a character. They differ by the order in which "
        "sums are made.\n\n" + markdown_table(header, table) + "\n"
    )
