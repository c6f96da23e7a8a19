"""Costs of the worst steps: gradients on which no threshold takes the count asked for, and spikes.

The work of ``scripts/bench select --hostile``; it writes ``selecting-hostile.json`` and
``selecting-hostile.md``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._contestants import Ours
from benchmarks._streams import json_by_line, markdown_table

ENTRIES, QUICK_ENTRIES = 10_000_000, 20_000
DENSITY = 0.001
LIMIT = 10
"""Times the median of usual steps that the worst of hostile ones is to take at most."""

WARM, STEPS, RUNS = 8, 12, 3

SELECTORS: dict[str, dict[str, Any]] = {
    "ldte_bs": {"density": DENSITY},
    "topk": {"density": DENSITY},
    "ldte": {"density": DENSITY},
    "redsync_search": {"density": DENSITY},
    "redsync_trimmed": {"density": DENSITY},
    "fixed_threshold": {"threshold": 7.0},
}

Make = Callable[[np.ndarray, int], np.ndarray]


def _spiked(usual: np.ndarray, step: int) -> np.ndarray:
    x = usual.copy()
    x[7_919 * step % x.size] = 1e30
    return x


KINDS: dict[str, Make] = {
    "usual: Laplace": lambda usual, step: usual,
    "all equal": lambda usual, step: np.full_like(usual, 10.0),
    "plateaus": lambda usual, step: np.round(usual),
    "a spike of 1e30 a step": _spiked,
    "subnormal": lambda usual, step: usual * np.float32(1e-42),
}
"""Gradients by what they are called, the usual ones first."""


@dataclass(frozen=True)
class Worst:
    """One selector on one kind of gradients.

    Attributes
    ----------
    median_ms, worst_ms : of its steps
    passes : the most counts over the whole vector that a step made
    times_usual : the worst step over the median of the usual ones
    """

    selector: str
    gradients: str
    median_ms: float
    worst_ms: float
    passes: int
    times_usual: float


def measure(entries: int, engine: str | None, say: Callable[[str], Any]) -> Iterator[Worst]:
    """Measure every selector on every kind, from the state that usual steps leave."""
    rng = np.random.default_rng(21)
    usual = [rng.laplace(size=entries).astype(np.float32) for _ in range(2)]
    for selector, options in SELECTORS.items():
        median = 0.0
        for kind, make in KINDS.items():
            say(f"{selector}: {kind}")
            runs = [_run({"id": selector, **options}, usual, make, engine) for _ in range(RUNS)]
            each = np.min([milliseconds for milliseconds, _ in runs], axis=0)
            median = median or float(np.median(each))
            worst = float(each.max())
            passes = max(most for _, most in runs)
            yield Worst(selector, kind, float(np.median(each)), worst, passes, worst / median)


def _run(
    selector: dict[str, Any], usual: list[np.ndarray], make: Make, engine: str | None
) -> tuple[list[float], int]:
    """Milliseconds of every step after the warm ones, and the most passes of one."""
    ours = Ours([usual[0].shape], selector, engine=engine)
    state, passes, taken = ours.states[0], 0, []
    for step in range(WARM + STEPS):
        gradient = usual[step % 2] if step < WARM else make(usual[step % 2], step)
        began = time.thread_time()
        outgoing = ours.pipeline.send(state, gradient, 0, 2, dense=False)
        state.commit()
        if step >= WARM:
            taken.append(1e3 * (time.thread_time() - began))
            passes = max(passes, outgoing.found.passes)
    return taken, passes


HEADER = [
    "selector",
    "gradients",
    "median step, ms",
    "worst step, ms",
    "most passes",
    "worst over usual median",
]

PAGE = """# The worst steps of choosing the entries

{entries:,} entries, density {density:g} (`fixed_threshold`: 7), one worker, one thread. Every
selector first takes {warm} usual steps and then {steps} of the kind that its row names.
Milliseconds are the processor's, of the thread that works, so that others at work on the machine
count little; every step is the quickest of {runs} runs of the same steps. The last column is the
worst of a row's steps over the selector's median on usual gradients; it is to be at most {limit}.

Made by `scripts/bench select --hostile --output docs/results` with {environment}.{quick}

{table}
"""


def table_of(measured: list[Worst]) -> str:
    """Return the table in Markdown."""
    rows = [
        [
            w.selector,
            w.gradients,
            f"{w.median_ms:.1f}",
            f"{w.worst_ms:.1f}",
            str(w.passes),
            f"{w.times_usual:.1f}",
        ]
        for w in measured
    ]
    return markdown_table(HEADER, rows)


def write(
    measured: list[Worst], entries: int, made_with: dict[str, str], folder: Path, *, is_quick: bool
) -> None:
    """Write selecting-hostile.json and selecting-hostile.md."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"made_with": made_with, "quick": is_quick, "entries": entries, "limit": LIMIT}
    document = json_by_line(head, {"steps": [asdict(worst) for worst in measured]})
    (folder / "selecting-hostile.json").write_text(document, encoding="utf-8")
    page = PAGE.format(
        entries=entries,
        density=DENSITY,
        warm=WARM,
        steps=STEPS,
        runs=RUNS,
        limit=LIMIT,
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        quick=" **A quick run: no figure here means anything.**" if is_quick else "",
        table=table_of(measured),
    )
    (folder / "selecting-hostile.md").write_text(page, encoding="utf-8")
