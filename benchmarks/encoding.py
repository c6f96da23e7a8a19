"""Bytes for an entry and coding times of every codec: ``python -m benchmarks codecs``."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

from benchmarks._page import made_with, markdown_table, write
from hvd_sparse.checks import count_from_density
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.frame import HEADER_BYTES, crc32

DENSITIES = (0.0001, 0.001, 0.01, 1 / 64, 0.1)
NUMEL, QUICK_NUMEL = 10_000_000, 200_000
ROUNDS, QUICK_ROUNDS = 7, 2
TURN_S = 0.01
"""Seconds for which a measurement repeats a call."""
YARDSTICK = "index_value"
PEER_BYTES = {"pairs of int64 and float32": 12, "pairs of int32 and float16": 6}
"""Bytes for an entry, without header, with GRACE and with DGC's authors' shortest format."""


def tried() -> dict[str, Any]:
    found: dict[str, Any] = {id: id for id in CODECS.ids()}
    for id in ("block16", "golomb"):
        for values in ("float32", "float16", "int8", "int4", "int2"):
            found[f"{id} {values}"] = {"id": id, "values": values}
    return found


@dataclass(frozen=True)
class Cost:
    """Bytes and times of one codec at one density."""

    codec: str
    density: float
    count: int  # entries sent
    bytes_per_entry: float  # of the whole frame
    encode_ns: float  # processor time an entry sent, the median
    decode_ns: float
    ratio: float  # of both, over index_value's in the same round


def bound(density: float, value_bytes: int) -> float:
    rest = 1 - density
    bits = -(density * math.log2(density) + rest * math.log2(rest)) / density
    return value_bytes + bits / 8


def _seconds_of(call: Callable[[], Any], repeats: int) -> float:
    """Return the CPU seconds of one call in this thread; other programs do not change them."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def measure(numel: int, density: float, rounds: int) -> list[Cost]:
    """Time all codecs at one density. In each round they run one after the other, so that changes
    in the speed of the machine affect all of them alike."""
    kernels = resolve_engine(None)
    vector = np.random.default_rng(0).laplace(size=numel).astype(np.float32)
    chosen = reference.take_largest(vector, count_from_density(numel, density))
    codecs = {name: CODECS.resolve(made).at_density(density) for name, made in tried().items()}
    payloads = {name: codec.encode(chosen) for name, codec in codecs.items()}
    calls = {
        (name, part): call
        for name, codec in codecs.items()
        for part, call in (
            ("encode", lambda c=codec: c.encode(chosen, kernels)),
            ("decode", lambda c=codec, p=payloads[name]: c.decode(p, kernels)),
        )
    }
    repeats = {at: max(1, int(TURN_S / max(_seconds_of(c, 1), 1e-6))) for at, c in calls.items()}
    turns = [{at: _seconds_of(c, repeats[at]) for at, c in calls.items()} for _ in range(rounds)]
    times = {
        name: np.array([[turn[name, part] for part in ("encode", "decode")] for turn in turns])
        for name in codecs
    }
    yardstick = times[YARDSTICK].sum(axis=1)
    return [
        Cost(
            name,
            density,
            chosen.count,
            payloads[name].size / chosen.count,
            *(np.median(times[name], axis=0) / chosen.count * 1e9).tolist(),
            float(np.median(times[name].sum(axis=1) / yardstick)),
        )
        for name in codecs
    ]


def run(options: argparse.Namespace) -> int:
    numel, rounds = (QUICK_NUMEL, QUICK_ROUNDS) if options.quick else (NUMEL, ROUNDS)
    costs = [
        cost
        for density in track(DENSITIES, "densities", transient=True)
        for cost in measure(numel, density, rounds)
    ]
    at = {(cost.codec, cost.density): cost for cost in costs}
    header = ["codec", *(f"{density:g}" for density in DENSITIES)]

    def table(form: Callable[[Cost], str], *more: list[str]) -> str:
        rows = [[f"`{name}`", *(form(at[name, d]) for d in DENSITIES)] for name in tried()]
        return markdown_table(header, [*rows, *more])

    bounds = [
        [f"entropy bound + {width} bytes", *(f"{bound(d, width):.3f}" for d in DENSITIES)]
        for width in (4, 2)
    ]
    peers = [[name, *([width] * len(DENSITIES))] for name, width in PEER_BYTES.items()]
    shown = {
        "sizes": table(lambda cost: f"{cost.bytes_per_entry:.3f}", *bounds, *peers),
        "times": table(lambda cost: f"{cost.encode_ns:.1f} + {cost.decode_ns:.1f}"),
        "ratios": table(lambda cost: f"{cost.ratio:.2f}"),
        "header_bytes": HEADER_BYTES,
        "checksum": crc32.__module__ or "zlib",
    }
    head = {"made_with": made_with(), "quick": options.quick, "numel": numel, "rounds": rounds}
    lists = {"costs": [asdict(cost) for cost in costs]}
    output = options.output / "codecs"
    print(write(output, "codecs.md", head, lists, **shown))
    draw(costs, output.with_suffix(".png"))
    return 0


def draw(costs: Sequence[Cost], path: Path) -> None:
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in tried():
        mine = [cost for cost in costs if cost.codec == name]
        left.plot(DENSITIES, [cost.bytes_per_entry for cost in mine], marker=".", label=name)
        right.plot(DENSITIES, [cost.encode_ns + cost.decode_ns for cost in mine], marker=".")
    for width, dashes in ((4, "--"), (2, "-.")):
        bounds = [bound(density, width) for density in DENSITIES]
        left.plot(DENSITIES, bounds, f"k{dashes}", label=f"entropy of indices + {width} bytes")
    for panel, title in ((left, "bytes an entry"), (right, "encode + decode, ns an entry")):
        panel.set(xscale="log", xlabel="density", title=title)
        panel.grid(alpha=0.25)
    left.set_ylim(0, 13)
    right.set_yscale("log")
    figure.legend(fontsize=7, ncols=8, loc="outside lower center", frameon=False)
    figure.savefig(path, dpi=110)
