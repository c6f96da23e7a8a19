"""Costs of choosing with our settings and with the authors', side by side.

The work of ``scripts/bench select --variants``; it writes ``selecting-variants.json`` and
``selecting-variants.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._contestants import FLOOR, Ours, Round, floor
from benchmarks._gradients import Gradients
from benchmarks._interleaved_timing import Contestant, Quartiles, race
from benchmarks._streams import json_by_line, markdown_table
from hvd_sparse.configuration import Configuration
from hvd_sparse.methods import Methods
from hvd_sparse.methods.spelling import read_method

ENTRIES, QUICK_ENTRIES = 10_000_000, 20_000
DENSITIES = (0.01, 0.001)
WARM, ROUNDS = 40, 16
PAIRS = {
    "ldte_bs": "ldte_bs,variant=paper",
    "gaussian_k": "gaussian_k,variant=paper",
    "redsync": "redsync,variant=paper",
    "redsync,search=True": "redsync,variant=paper,search=True",
    "scalecom": "scalecom,variant=paper,warmup_steps=0",
}
"""Methods as we set them, and as their authors do. Ok-Topk's variants differ in their first steps
alone."""


class Named(Methods):
    """The named methods, of which only the configuration is wanted."""

    @classmethod
    def _create(cls, params: Any, configuration: Any, process_set: Any, grad_scaler: Any) -> Any:
        return configuration


@dataclass(frozen=True)
class Timed:
    """One method in one of its variants.

    Attributes
    ----------
    milliseconds : of a step: gradient to payload and residual
    times_floor : over ``residual.add_(gradient)``, round by round
    count_over_k : entries selected in the last round, over those asked for
    """

    method: str
    density: float
    milliseconds: Quartiles
    times_floor: Quartiles
    count_over_k: float


def configuration_of(method: str, density: float) -> Configuration:
    """Return what a spelled method is made of."""
    made: Configuration = read_method(method).create(Named, None, density=density)
    return made


def measure(entries: int, engine: str | None, say: Callable[[str], Any]) -> Iterator[Timed]:
    """Time all methods against each other at every density, from about the residual that many
    steps leave."""
    gradients = Gradients.draw(entries, seed=entries)
    for density in DENSITIES:
        say(f"{entries:,} entries, density {density:g}")
        residual = gradients.steady_residual(density, seed=1)
        ours = {
            name: _ours(configuration_of(name, density), residual, engine)
            for pair in PAIRS.items()
            for name in pair
        }
        contestants = [floor([residual])]
        contestants += [Contestant(name, each.step) for name, each in ours.items()]
        times = race(
            contestants,
            lambda step: Round.cut(gradients.at(step), [(entries,)]),
            warm=WARM,
            rounds=ROUNDS,
        )
        for name, each in ours.items():
            ratio = each.found[0].selection.count / (density * entries)
            yield Timed(
                name, density, times.milliseconds(name), times.ratio(name, FLOOR), float(ratio)
            )


def _ours(configuration: Configuration, residual: np.ndarray, engine: str | None) -> Ours:
    return Ours(
        [residual.shape],
        configuration.selector,
        engine=engine,
        residuals=[residual],
        memory=configuration.memory,
        codec=configuration.codec,
    )


HEADER = ["method", "density", "ms a step, median", "quartiles", "times the floor", "count / k"]
PAGE = """# Choosing with our settings and with the authors'

{entries:,} entries, one worker, one thread, {rounds} interleaved rounds after {warm} in which
thresholds settle. A step goes from the gradient to the payload and the settled residual; the floor
is `{floor}` in torch. "count / k" is what the last round selected, over what was asked for.
[methods](../methods/index.md) says what the variants are; `oktopk`'s differ in their first steps
alone, which run dense.

Made by `scripts/bench select --variants --output docs/results` with {environment}.{quick}

{table}
"""


def table_of(measured: list[Timed]) -> str:
    """Return the table in Markdown."""
    rows = [
        [
            f"`{t.method}`",
            f"{t.density:g}",
            f"{t.milliseconds.median:.1f}",
            f"{t.milliseconds.low:.1f} to {t.milliseconds.high:.1f}",
            f"{t.times_floor.median:.2f}",
            f"{t.count_over_k:.2f}",
        ]
        for t in measured
    ]
    return markdown_table(HEADER, rows)


def write(
    measured: list[Timed], entries: int, made_with: dict[str, str], folder: Path, *, is_quick: bool
) -> None:
    """Write selecting-variants.json and selecting-variants.md."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"made_with": made_with, "quick": is_quick, "entries": entries}
    document = json_by_line(head, {"steps": [asdict(timed) for timed in measured]})
    (folder / "selecting-variants.json").write_text(document, encoding="utf-8")
    page = PAGE.format(
        entries=entries,
        rounds=ROUNDS,
        warm=WARM,
        floor=FLOOR,
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        quick=" **A quick run: no figure here means anything.**" if is_quick else "",
        table=table_of(measured),
    )
    (folder / "selecting-variants.md").write_text(page, encoding="utf-8")
