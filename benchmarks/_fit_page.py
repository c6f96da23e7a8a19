"""The page and the plot that ``benchmarks.distribution_fit`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from benchmarks._streams import markdown_table

# Okabe and Ito's palette, told apart in all common kinds of colour blindness; markers and dashes
# say it again.
STYLES = {
    "ldte": ("#D55E00", "o", "-"),
    "ldte_bs": ("#0072B2", "s", "-"),
    "dgc_sampled": ("#009E73", "^", "--"),
    "redsync_trimmed": ("#CC79A7", "D", "-."),
    "radix_select": ("#000000", "x", ":"),
}
Rows = list[dict[str, Any]]

PAGE = """# Distribution of real gradients, and selection quality by size

The evidence of the LDTE-BS paper (`hvd-sparse cite ldte_bs`) redone on three small models: a CNN on
handwritten digits, a character LSTM with an embedding and a small transformer on Python source
text, trained with plain SGD, exact top-k at density {density:g} and error feedback. Step 1 is a
gradient without residual; later steps are gradient + residual.

Made by `python -m benchmarks.distribution_fit` with {environment}. Every number is in
`distribution-fit.json`.

## Laplace or normal: the paper's Tab. 1

Wasserstein-1 distance to the maximum-likelihood Laplace and normal distributions, over the mean
magnitude of the vector (the paper's unit is not known to us), so 0.1 means: entries are off by a
tenth of the mean magnitude on average. All of a model's compressed tensors in one vector, which is
what a row of the paper's table seems to be:

{models}

The paper finds Laplace nearer for all five of its networks, by factors of 1.45 to 2.11.
Here it is nearer for {first_models} at step 1 and for {last_models} at step {last}.

By tensor, at step 1 and at step {last}; "zeros" is the share of exact zeros at step {last}, excess
kurtosis is 0 for a normal and 3 for a Laplace distribution:

{tensors}

Of {tensor_count} tensors, Laplace is the nearer for {first_nearer} at step 1, and for {last_nearer}
at step {last}. Of the gradients alone at step {last}, without the residual that error feedback
adds, it is the nearer for {alone_nearer}.

A vector of tensors of different scales has heavy tails whatever the tensors are like, so the table
of whole models says nothing of single tensors, which is what is selected from: there, the paper's
claim holds where the last table says so.

## Selection quality by data size: the paper's Fig. 5

Accumulated gradients of all tensors of all three models, one after the other; of this vector
{draws} stretches a size are selected from, from a cold start. "achieved" is count sent / count
asked for; "energy" is the error of the sum of squares sent, relative to exact top-k. Medians, and
in brackets the 5th and 95th percentile. Stretches of 1,000,000 entries overlap nearly wholly, and
hold tensors of very different scales. `ldte` sends at least one entry and at most 8 k.

![Selection quality by data size](distribution-fit.png)

{selections}
"""


def draw(selected: Rows, density: float, path: Path) -> None:
    """Draw counts above and energies below, a column a step."""
    steps = sorted({row["step"] for row in selected})
    figure, axes = plt.subplots(
        2, len(steps), figsize=(10, 7), sharex=True, sharey="row", layout="constrained"
    )
    for column, step in enumerate(steps):
        for row, what in enumerate(("achieved", "energy_error")):
            _panel(
                axes[row][column],
                [r for r in selected if r["step"] == step and r["density"] == density],
                what,
            )
        axes[0][column].set_title(
            "gradient, step 1" if step == 1 else f"gradient + residual, step {step}"
        )
        axes[0][column].set_yscale("log")
        axes[1][column].set_yscale("symlog", linthresh=0.1)
        axes[1][column].set_xlabel("entries in the vector")
    axes[0][0].set_ylabel(f"count sent / count asked for\n(density {density:g})")
    axes[1][0].set_ylabel("energy sent / exact top-k's - 1")
    handles = [
        Line2D([], [], color=c, marker=m, linestyle=line, label=id, fillstyle="none")
        for id, (c, m, line) in STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _panel(axis: Any, rows: Rows, what: str) -> None:
    axis.axhline(1.0 if what == "achieved" else 0.0, color="#999999", linewidth=0.8)
    for id, (color, marker, line) in STYLES.items():
        sizes = sorted({row["size"] for row in rows})
        numbers = [
            [row[what] for row in rows if row["selector"] == id and row["size"] == size]
            for size in sizes
        ]
        low, middle, high = np.array([np.percentile(n, [5, 50, 95]) for n in numbers]).T
        axis.plot(
            sizes,
            middle,
            color=color,
            marker=marker,
            linestyle=line,
            markersize=6,
            fillstyle="none",
        )
        axis.fill_between(sizes, low, high, color=color, alpha=0.12, linewidth=0)
    axis.set_xscale("log")
    axis.grid(alpha=0.25)


def render(
    fits: Rows, selected: Rows, density: float, draws: int, made_with: dict[str, str]
) -> str:
    last = max(row["step"] for row in fits)
    models = [row for row in fits if row["tensor"] == "all" and row["what"] == "accumulated"]
    tensors = [row for row in fits if row["tensor"] != "all" and row["what"] == "accumulated"]
    alone = [row for row in fits if row["tensor"] != "all" and row["what"] == "gradient"]

    def nearer(rows: Rows, step: int) -> list[str]:
        return [
            row["model"] for row in rows if row["step"] == step and row["laplace"] < row["normal"]
        ]

    return PAGE.format(
        density=density,
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        models=_model_table(models),
        first_models=", ".join(nearer(models, 1)) or "none",
        last_models=", ".join(nearer(models, last)) or "none",
        last=last,
        tensors=_tensor_table(tensors, last),
        tensor_count=len({(row["model"], row["tensor"]) for row in tensors}),
        first_nearer=len(nearer(tensors, 1)),
        last_nearer=len(nearer(tensors, last)),
        alone_nearer=len(nearer(alone, last)),
        draws=draws,
        selections=_selection_tables(selected),
    )


def _model_table(rows: Rows) -> str:
    header = ["model", "step", "normal", "Laplace", "normal / Laplace", "excess kurtosis", "nearer"]
    return markdown_table(
        header, [[row["model"], str(row["step"]), *_distances(row)] for row in rows]
    )


def _distances(row: dict[str, Any]) -> list[str]:
    distances = [
        f"{row['normal']:.3f}",
        f"{row['laplace']:.3f}",
        f"{row['normal'] / row['laplace']:.2f}",
    ]
    return [
        *distances,
        f"{row['excess_kurtosis']:.1f}",
        "Laplace" if row["laplace"] < row["normal"] else "normal",
    ]


def _tensor_table(rows: Rows, last: int) -> str:
    at = {(row["model"], row["tensor"], row["step"]): row for row in rows}
    header = ["tensor", "entries", "zeros"]
    header += [
        f"{what}, step {step}"
        for step in (1, last)
        for what in ("normal", "Laplace", "kurtosis", "nearer")
    ]
    lines = []
    for model, tensor in dict.fromkeys((row["model"], row["tensor"]) for row in rows):
        line = [
            f"{model} `{tensor}`",
            str(at[model, tensor, 1]["numel"]),
            f"{at[model, tensor, last]['zeros']:.0%}",
        ]
        for step in (1, last):
            normal, laplace, _, kurtosis, nearer = _distances(at[model, tensor, step])
            line += [normal, laplace, kurtosis, nearer]
        lines.append(line)
    return markdown_table(header, lines)


def _selection_tables(selected: Rows) -> str:
    parts = []
    for step, density in dict.fromkeys((row["step"], row["density"]) for row in selected):
        rows = [row for row in selected if row["step"] == step and row["density"] == density]
        sizes = sorted({row["size"] for row in rows})
        header = [
            "selector",
            *(f"{size:,} {what}" for size in sizes for what in ("achieved", "energy")),
        ]
        lines = []
        for id in STYLES:
            line = [f"`{id}`"]
            for size in sizes:
                mine = [row for row in rows if row["selector"] == id and row["size"] == size]
                line += [_spread([r["achieved"] for r in mine], "{:.2f}")]
                line += [_spread([r["energy_error"] for r in mine], "{:+.1%}")]
            lines.append(line)
        parts.append(f"### Step {step}, density {density:g}\n\n{markdown_table(header, lines)}")
    return "\n\n".join(parts)


def _spread(numbers: list[float], form: str) -> str:
    low, middle, high = (
        form.format(n + 0.0) for n in np.percentile(np.round(numbers, 6), [5, 50, 95])
    )
    return middle if low == middle == high else f"{middle} ({low} to {high})"
