"""The page and the picture that ``scripts/bench codecs`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks._entropy import GRACE, SYNXLIN, index_bits
from benchmarks._streams import markdown_table
from hvd_sparse.wire.frame import HEADER_BYTES

STYLES = {
    "index_value": "black",
    "run16": "tab:brown",
    "block16 bfloat16": "tab:blue",
    "block16 float32": "tab:cyan",
    "golomb bfloat16": "tab:red",
    "golomb float32": "tab:orange",
    "bitmap float32": "tab:green",
    "sign_index": "tab:gray",
    "sign_mean": "tab:purple",
    "ternary": "tab:pink",
}

PAGE = """# Codecs: bytes and time

Made by `scripts/bench codecs --output docs/results` with {environment}. Exact top-k of {numel:,}
entries of Laplace noise. Bytes are those of the whole frame, its 32 bytes of header included; times
are medians of processor time, in nanoseconds an entry sent, over rounds in which every codec takes
its turn, on a machine that had other work too, so that caches were shared. The bound is the entropy
of a random set of indices, with whole values of 4 or 2 bytes.

![bytes and time by density](codecs.png)

## Bytes an entry

{sizes}

## Bits of index an entry

{bits}

## Time: encode + decode, ns an entry

{times}

## Time: encode + decode, times that of index_value

The median of the ratios within a round.

{ratios}

The same where `isal` is not installed and CRC-32 is zlib's, which costs by the byte:

{with_zlib}

## Recorded gradients

All {tensors} vectors of `tests/fixtures/gradients`: gradient + residual of real training, exact
top-k of each. Totals of the frames, a header of 32 bytes each included, which weighs on tensors as
small as these: a few thousand entries, of which single ones are sent at the lower density.  GRACE
and DGC's authors' code by their formulas: two messages without header or checksum.

{recorded}
"""


def bound_bytes(density: float, value_bytes: int) -> float:
    return value_bytes + index_bits(density) / 8


def draw(costs: list[Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained")
    for name, colour in STYLES.items():
        mine = sorted((cost for cost in costs if cost.codec == name), key=lambda cost: cost.density)
        densities = [cost.density for cost in mine]
        left.plot(
            densities, [cost.bytes_per_entry for cost in mine], color=colour, marker=".", label=name
        )
        right.plot(
            densities,
            [cost.encode_ns + cost.decode_ns for cost in mine],
            color=colour,
            marker=".",
            label=name,
        )
    densities = sorted({cost.density for cost in costs})
    for value_bytes, style in ((4, "--"), (2, "-."), (0, ":")):
        bound = [bound_bytes(density, value_bytes) for density in densities]
        left.plot(
            densities,
            bound,
            "k",
            linestyle=style,
            linewidth=1,
            label=f"entropy of indices + {value_bytes} bytes",
        )
    left.set_ylim(0, 13)
    left.axhline(GRACE, color="black", linewidth=0.5)
    left.text(densities[0], GRACE + 0.15, "GRACE", fontsize=8)
    for axis, title in ((left, "bytes an entry"), (right, "encode + decode, ns an entry")):
        axis.set_xscale("log")
        axis.set_xlabel("density")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25)
    right.set_yscale("log")
    left.legend(fontsize=7, ncols=3, loc="upper left", bbox_to_anchor=(0, 0.9))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def render(
    costs: list[Any],
    plain: list[Any],
    totals: dict[str, dict[str, float]],
    numel: int,
    made_with: dict[str, str],
) -> str:
    densities = sorted({cost.density for cost in costs})
    names = list(dict.fromkeys(cost.codec for cost in costs))
    at = {(cost.codec, cost.density): cost for cost in costs}
    at_zlib = {(cost.codec, cost.density): cost for cost in plain}
    header = ["codec", *(f"{density:g}" for density in densities)]

    def table(form: Any, which: list[str], *more: list[str], at: Any = at) -> str:
        rows = [
            [f"`{name}`", *(form(at[name, density]) for density in densities)] for name in which
        ]
        return markdown_table(header, [*rows, *more])

    bounds = [
        [
            f"entropy bound + {width} bytes",
            *(f"{bound_bytes(density, width):.3f}" for density in densities),
        ]
        for width in (4, 2, 1)
    ]
    values = {
        "index_value": 4,
        "run16": 4,
        "block16 float32": 4,
        "golomb float32": 4,
        "bitmap float32": 4,
    }
    return PAGE.format(
        environment=", ".join(f"{name} {version}" for name, version in made_with.items()),
        numel=numel,
        sizes=table(lambda cost: f"{cost.bytes_per_entry:.3f}", names, *bounds),
        bits=table(
            lambda cost: f"{8 * (cost.bytes_per_entry - values[cost.codec] - 32 / cost.count):.3f}",
            list(values),
            ["entropy bound", *(f"{index_bits(density):.3f}" for density in densities)],
        ),
        times=table(lambda cost: f"{cost.encode_ns:.1f} + {cost.decode_ns:.1f}", names),
        ratios=table(lambda cost: f"{cost.ratio:.2f}", names),
        with_zlib=table(
            lambda cost: f"{cost.ratio:.2f}",
            list(dict.fromkeys(cost.codec for cost in plain)),
            at=at_zlib,
        ),
        tensors=int(next(iter(totals.values()))["frames"]),
        recorded=_recorded_table(totals, names),
    )


def _recorded_table(totals: dict[str, dict[str, float]], names: list[str]) -> str:
    columns = ("bytes in all", "an entry", "without headers")
    header = ["codec", *(f"{density}: {what}" for density in totals for what in columns)]
    rows = [
        [f"`{name}`", *_columns(totals, lambda t, name=name: t[name], HEADER_BYTES)]
        for name in names
    ]
    rows.append(["GRACE", *_columns(totals, lambda t: GRACE * t["entries"])])
    for layout, width in SYNXLIN.items():
        rows.append(
            [
                f"DGC's authors' code, {layout}",
                *_columns(totals, lambda t, width=width: width * t["entries"]),
            ]
        )
    for width in (4, 2):
        bound = _columns(totals, lambda t, width=width: t["index bound"] + width * t["entries"])
        rows.append([f"entropy bound + {width} bytes", *bound])
    return markdown_table(header, rows)


def _columns(totals: dict[str, dict[str, float]], bytes_of: Any, header: int = 0) -> list[str]:
    return [
        text
        for t in totals.values()
        for text in (
            f"{bytes_of(t):,.0f}",
            f"{bytes_of(t) / t['entries']:.3f}",
            f"{(bytes_of(t) - header * t['frames']) / t['entries']:.3f}",
        )
    ]
