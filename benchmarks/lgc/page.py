"""The page of LGC: bytes, times, errors and scores, and what they say."""

from __future__ import annotations

from typing import Any

from benchmarks._streams import markdown_table

RATES = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
NAMES = {
    "lgc": "LGC: codes of an autoencoder, summed",
    "scalecom": "ScaleCom: exact values at a leader's indices, summed",
    "float32": "own top k, golomb float32, gathered",
    "int8": "own top k, golomb int8, gathered",
    "int4": "own top k, golomb int4, gathered",
    "int2": "own top k, golomb int2, gathered",
}


def received(found: dict[str, Any], way: str) -> float:
    """Return the bytes that a rank receives in a step.

    Rings sum 2 (N - 1) / N times what each brings, and N - 1 messages are gathered; the leader's
    indices come once, as golomb packs them.
    """
    ranks, count = found["workers"], found["count"]
    by_way = {row["way"]: row["bytes"] for row in found["costs"]}
    indices = by_way["float32"] - 4 * count
    ring = 2 * (ranks - 1) / ranks
    if way == "scalecom":
        return float(indices + ring * 4 * count)
    if way == "lgc":
        return float(indices + ring * by_way["lgc"])
    return float((ranks - 1) * by_way[way])


def coding_s(found: dict[str, Any], way: str) -> float:
    """Return the seconds of encoding one message and decoding what arrives."""
    return next((float(row["s"]) for row in found["costs"] if row["way"] == way), 0.0)


def error(found: dict[str, Any], way: str) -> float:
    """Return the relative error of the mean that is applied."""
    return next((float(row["error"]) for row in found["costs"] if row["way"] == way), 0.0)


def spared_s(found: dict[str, Any], bits_a_second: float) -> float:
    """Return the seconds of the wire that LGC spares beside ScaleCom in a step."""
    return 8 * (received(found, "scalecom") - received(found, "lgc")) / bits_a_second


def verdict(found: dict[str, Any]) -> str:
    """Return what the figures say, in one line."""
    takes = coding_s(found, "lgc")
    parts = ", ".join(
        f"{1e3 * spared_s(found, rate):.2f} ms at {name}" for name, rate in RATES.items()
    )
    scores = {row["way"]: row["score"] for row in found["scores"]}
    return (
        f"its autoencoder takes {1e3 * takes:.1f} ms a step on one core to spare {parts}, "
        f"{error(found, 'lgc'):.0%} of the mean is lost (values of 2 bits: "
        f"{error(found, 'int2'):.0%}, which the residual keeps), and a training reaches "
        f"{scores['lgc']:.1f} % where exact values reach {scores['exact']:.1f} %"
    )


def render(found: dict[str, Any]) -> str:
    """Return the page's text."""
    made = ", ".join(f"{name} {value}" for name, value in found["made_with"].items())
    rows = []
    for way, name in NAMES.items():
        times = [f"{8e3 * received(found, way) / rate:.2f}" for rate in RATES.values()]
        cells = [f"{received(found, way) / found['count']:.2f}", *times]
        rows.append([name, *cells, f"{1e3 * coding_s(found, way):.2f}", f"{error(found, way):.3f}"])
    header = ["", "bytes an entry, received", *(f"wire, ms at {name}" for name in RATES)]
    header += ["coding, ms", "error of the mean"]
    curve = [[str(row["steps"]), f"{row['error']:.3f}"] for row in found["curve"]]
    named = {"exact": "exact values", "lgc": "LGC", "dense": "dense, all steps"}
    scores = [[named[row["way"]], f"{row['score']:.2f}"] for row in found["scores"]]
    return f"""\
# LGC: is a learned code worth its time?

LGC (learned gradient compression; Abrahamyan and others, 2021) sends, in the place of the
values at common indices, the code of an autoencoder that is trained on them in the run: a
quarter as many numbers.  Here it is beside ScaleCom, which sums the values themselves, and
beside values of few bits.  What follows from the figures: **it is not a method of this
package**, as {verdict(found)}.

Made by `python -m benchmarks.lgc` with {made}: plain SGD on `{found["task"]}`,
{found["workers"]} simulated workers, density {found["density"]} of {found["numel"]:,} entries,
{found["count"]:,} values a step.  The autoencoder has the layers of the open implementation,
learned at every step from all workers' values and their mean behind {found["dense_steps"]}
dense steps ({1e3 * found["learning_s"]:.0f} ms a step); the largest {found["innovation"]:g} of
the entries come as they are.

## Bytes, time and error of a step

At the end of {found["steps"]} steps, {found["steps"] - found["dense_steps"]} of them learned
from.  Bytes are those that a rank receives; coding is encoding one message and decoding what
arrives, in processor time of one core; the error is the length of what is missing of the mean,
beside the mean.  Guessing zeros has 1.

{markdown_table(header, rows)}

ScaleCom and LGC lose nothing of what the leader did not choose: it stays in the residuals.
LGC's own error does not: a rank knows the decoded mean alone, and not what of it was its part.
Rounded values do stay.

## What the autoencoder learns

| steps learned from | error of the mean |
| ---: | ---: |
{chr(10).join("| " + " | ".join(row) + " |" for row in curve)}

Indices change from step to step, so that a value's neighbours say little about it: what an
autoencoder could find in images, likeness of neighbours, is not there.

## What a training reaches

The same {found["steps"]} steps: LGC is dense for {found["dense_steps"]}, learns for
{found["learning_steps"]}, and is applied in the others; exact values begin where it begins to
learn. One run each, of one seed.

{markdown_table(["", "test accuracy, %"], scores)}
"""
