"""The page that ``benchmarks.achieved_density`` writes."""

from __future__ import annotations

from benchmarks._streams import markdown_table

LDTE_BS = "ldte_bs"
SETTLED = 20
GOAL_PASSES = 3


def all_table(results: list[dict], density: float) -> str:
    header = ["selector", "p5", "median", "p95", "passes, mean", "passes, p95", "fallbacks"]
    rows = []
    for result in results:
        if result["density"] == density and result["tensor"] is None:
            numbers = [f"{result[f'achieved_{which}']:.3f}" for which in ("p5", "median", "p95")]
            passes = [f"{result['passes_mean']:.2f}", f"{result['passes_p95']:.0f}"]
            rows.append(
                [f"`{result['selector']}`", *numbers, *passes, f"{result['fallbacks']:.1%}"]
            )
    return markdown_table(header, rows)


def goal_table(results: list[dict], densities: list[float]) -> str:
    """Return the share of LDTE-BS's selections after the first steps that are within the goal."""
    shares = {
        (r["selector"], r["density"]): r["within_goal"] for r in results if r["tensor"] is None
    }
    names = sorted({name for name, _ in shares if name.split(",")[0] == LDTE_BS})
    rows = [
        [f"`{name}`", *(f"{shares[name, density]:.1%}" for density in densities)] for name in names
    ]
    return markdown_table(["variant", *(f"density {density:g}" for density in densities)], rows)


def tensor_table(results: list[dict]) -> str:
    """Return the table of LDTE-BS as it comes, tensor by tensor."""
    rows = [
        [
            f"{r['model']} `{r['tensor']}`",
            f"{r['density']:g}",
            f"{r['least_asked']:.0f}",
            f"{r['passes_mean']:.2f}",
            f"{r['within_goal']:.1%}",
            f"{r['within_tolerance']:.1%}",
            f"{r['fallbacks']:.1%}",
        ]
        for r in results
        if r["selector"] == LDTE_BS and r["tensor"] is not None
    ]
    return markdown_table(
        [
            "tensor",
            "density",
            "k",
            "passes, mean",
            "at most 3 passes",
            "within tolerance",
            "fallbacks",
        ],
        rows,
    )


PAGE = """# Achieved density and passes

Count sent / count asked for, and compare-and-count passes over the whole vector, of every selector
that is told a density, on real gradients: three small models ({models}), {steps} steps each. The
models are trained with exact top-k and error feedback at the density of the table; every selector
listens to the same gradients with its own residual, warm start and memo. A pass is one read of the
whole vector; the passes that add the gradient (and take the entries near the last threshold along),
for moments and for copying the entries out are not counted, nor is the work of exact top-k or of
drawing. A fallback is a selection cut by exact top-k on its candidates.

Made by `{command}` with {environment}.

`chunked` sends whole chunks of 512 entries, at least one; `redsync_search` searches for k to 2k
entries and then keeps the threshold for 5 steps; k is as small as 1 at the lowest density, see the
last table.

{tables}

## LDTE-BS: at most 2 passes beyond the first

Share of the selections after step {settled} that took at most {goal} passes; the goal is 95 % with
warm start and `log_count`, which is `ldte_bs` as it comes. Cold means `warm_start=False`.

{goals}

`ldte_bs` as it comes, by tensor, with the share of all selections whose count is within the
tolerance, 0.8 k to 1.3 k rounded inwards to whole entries (a fallback sends exactly k):

{tensors}
"""


def render(
    results: list[dict],
    densities: list[float],
    models: list[str],
    steps: int,
    made_with: dict[str, str],
) -> str:
    return PAGE.format(
        models=", ".join(models),
        steps=steps,
        command="python -m benchmarks.achieved_density",
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        tables="\n\n".join(
            f"## Density {density:g}\n\n{all_table(results, density)}" for density in densities
        ),
        settled=SETTLED,
        goal=GOAL_PASSES,
        goals=goal_table(results, densities),
        tensors=tensor_table(results),
    )
