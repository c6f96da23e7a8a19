"""Bytes an entry and the cost of encoding and decoding, of every codec, beside the entropy bound.

    scripts/bench codecs                            table, JSON, page and picture in bench-output
    scripts/bench codecs --output docs/results        write the page of this repository

Random indices with the values that exact top-k leaves of a Laplace distribution, at densities 1e-4
to 1e-1; and the recorded gradients of tests/fixtures.  Every codec takes its turn in every round,
so that drift hits all alike; a ratio is the median over the rounds of ratios within one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import hvd_sparse
from benchmarks import _encoding_page
from benchmarks._entropy import set_bits
from hvd_sparse.checks import count_from_density
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire import checksum
from hvd_sparse.wire import frame as _frame

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
from recorded import recorded  # noqa: E402

DENSITIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1 / 64, 3e-2, 1e-1)
NUMEL, QUICK_NUMEL = 10_000_000, 200_000
ROUNDS, QUICK_ROUNDS = 7, 2
TURN_S = 0.01
"""A turn repeats what is timed for about so long."""

SLOW_S, SLOW_ROUNDS = 0.3, 1
"""What takes so long sits out all but the first round."""

YARDSTICK = "index_value"
CODECS_TRIED: dict[str, Any] = {
    "index_value": "index_value",
    "run16": "run16",
    "block16 float32": {"id": "block16", "values": "float32"},
    "block16 float16": {"id": "block16", "values": "float16"},
    "block16 bfloat16": "block16",
    "block16 int8": {"id": "block16", "values": "int8"},
    "golomb float32": {"id": "golomb", "values": "float32"},
    "golomb float16": {"id": "golomb", "values": "float16"},
    "golomb bfloat16": "golomb",
    "golomb int8": {"id": "golomb", "values": "int8"},
    "block16 int4": {"id": "block16", "values": "int4"},
    "block16 int2": {"id": "block16", "values": "int2"},
    "golomb int4": {"id": "golomb", "values": "int4"},
    "golomb int2": {"id": "golomb", "values": "int2"},
    "chunk12 int4": {"id": "chunk12", "values": "int4"},
    "chunk12 int2": "chunk12",
    "bitmap float32": "bitmap",
    "dense float32": "dense",
    "sign_index": "sign_index",
    "ternary": "ternary",
    "sign_mean": "sign_mean",
    "one_sign": "one_sign",
    "two_bit": "two_bit",
    "one_bit": "one_bit",
    "auto float32": {"id": "auto", "values": "float32"},
    "auto bfloat16": "auto",
}

WITH_ZLIB = (
    "index_value",
    "block16 float32",
    "block16 float16",
    "block16 bfloat16",
    "block16 int8",
    "golomb bfloat16",
)
"""Also measured with zlib's CRC-32 in the place of isal's."""


@dataclass(frozen=True)
class Cost:
    """One codec at one density.

    Attributes
    ----------
    bytes_per_entry : of the whole frame, 32 bytes of header included
    encode_ns, decode_ns : medians of processor time, an entry sent
    ratio : encode + decode, over that of index_value in the same round: median
    """

    codec: str
    density: float
    count: int
    bytes_per_entry: float
    encode_ns: float
    decode_ns: float
    ratio: float


def random_selection(numel: int, density: float) -> Selection:
    """Exact top-k of Laplace noise."""
    vector = np.random.default_rng(0).laplace(size=numel).astype(np.float32)
    return reference.take_largest(vector, count_from_density(numel, density))


def seconds_of(call: Any, repeats: int) -> float:
    """Return the processor seconds of this thread, so that other work on the machine does not
    count."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def measure(
    numel: int, density: float, rounds: int, names: Iterable[str] = CODECS_TRIED, engine: Any = None
) -> list[Cost]:
    """One density.

    engine : whose kernels pack; None for the best that is installed
    """
    kernels = resolve_engine(engine)
    chosen = random_selection(numel, density)
    codecs = {name: CODECS.resolve(CODECS_TRIED[name]).at_density(density) for name in names}
    payloads = {name: codec.encode(chosen) for name, codec in codecs.items()}
    calls = {
        name: (
            lambda c=codec, s=chosen: c.encode(s, kernels),
            lambda c=codec, p=payloads[name]: c.decode(p, kernels),
        )
        for name, codec in codecs.items()
    }
    repeats = {
        name: [max(1, int(TURN_S / max(seconds_of(call, 1), 1e-6))) for call in pair]
        for name, pair in calls.items()
    }
    times = {name: np.full((rounds, 2), np.nan) for name in calls}
    for turn in range(rounds):
        for name, pair in calls.items():
            if turn < SLOW_ROUNDS or np.nanmax(times[name]) < SLOW_S:
                times[name][turn] = [
                    seconds_of(call, repeats[name][way]) for way, call in enumerate(pair)
                ]
    yardstick = times[YARDSTICK].sum(axis=1)
    return [
        Cost(
            name,
            density,
            chosen.count,
            payloads[name].size / chosen.count,
            *(np.nanmedian(times[name], axis=0) / chosen.count * 1e9).tolist(),
            float(np.nanmedian(times[name].sum(axis=1) / yardstick)),
        )
        for name in calls
    ]


def of_recorded(density: float) -> dict[str, float]:
    """Bytes in all, of every codec's frames for exact top-k of every recorded tensor; and the bound
    on their indices."""
    totals = dict.fromkeys(CODECS_TRIED, 0.0)
    totals |= {"entries": 0, "frames": 0, "index bound": 0.0}
    for vector in recorded():
        chosen = reference.take_largest(
            vector.values, count_from_density(vector.values.size, density)
        )
        totals["entries"] += chosen.count
        totals["frames"] += 1
        totals["index bound"] += set_bits(chosen.count, chosen.numel) / 8
        for name, made in CODECS_TRIED.items():
            codec = CODECS.resolve(made).at_density(density)
            totals[name] += codec.encode(chosen).size
    return totals


def environment() -> dict[str, str]:
    return {
        "processor": f"{platform.machine()}, 1 thread",
        "python": platform.python_version(),
        "hvd_sparse": hvd_sparse.__version__,
        "numpy": metadata.version("numpy"),
        "CRC-32 of": checksum.crc32.__module__ or "zlib",
    }


def print_table(costs: list[Cost]) -> None:
    densities = sorted({cost.density for cost in costs})
    table = Table(
        title="bytes an entry | encode + decode, ns an entry | times index_value",
        title_justify="left",
    )
    table.add_column("codec")
    for density in densities:
        table.add_column(f"{density:g}", justify="right")
    for name in CODECS_TRIED:
        mine = {cost.density: cost for cost in costs if cost.codec == name}
        table.add_row(name, *(_cell(mine[density]) for density in densities))
    bound = [
        f"{_encoding_page.bound_bytes(density, 4):.2f} | "
        f"{_encoding_page.bound_bytes(density, 2):.2f}"
        for density in densities
    ]
    table.add_row("entropy + 4 | 2 bytes", *bound)
    Console(width=max(120, 24 + 22 * len(densities))).print(table)


def _cell(cost: Cost) -> str:
    return f"{cost.bytes_per_entry:.2f} | {cost.encode_ns + cost.decode_ns:.1f} | {cost.ratio:.2f}"


def run(options: argparse.Namespace) -> int:
    numel, rounds = (QUICK_NUMEL, QUICK_ROUNDS) if options.quick else (NUMEL, ROUNDS)
    densities = DENSITIES[::3] if options.quick else DENSITIES
    costs: list[Cost] = []
    for density in track(densities, "densities", console=Console(stderr=True)):
        costs += measure(numel, density, rounds)
    with mock.patch.object(_frame, "crc32", zlib.crc32):
        plain = [
            cost for density in densities for cost in measure(numel, density, rounds, WITH_ZLIB)
        ]
    totals = {f"{density:g}": of_recorded(density) for density in (0.001, 0.01)}
    print_table(costs)
    options.output.mkdir(parents=True, exist_ok=True)
    made_with = environment()
    lines, others = (
        ",\n".join(json.dumps(asdict(cost)) for cost in those) for those in (costs, plain)
    )
    head = {
        "quick": options.quick,
        "numel": numel,
        "rounds": rounds,
        "made_with": made_with,
        "recorded": totals,
    }
    document = (
        json.dumps(head, indent=1)[:-2]
        + f',\n "costs": [\n{lines}\n],\n "costs with zlib": [\n{others}\n]\n}}\n'
    )
    (options.output / "codecs.json").write_text(document, encoding="utf-8")
    _encoding_page.draw(costs, options.output / "codecs.png")
    page = _encoding_page.render(costs, plain, totals, numel, made_with)
    (options.output / "codecs.md").write_text(page, encoding="utf-8")
    return 0
