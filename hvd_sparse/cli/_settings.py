"""A model, a network and costs, as ``advise`` and ``simulate`` are told of them."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES, replayed
from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.autotune.costmodel.network import MeasuredNetwork
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.errors import InvalidOption, NotInstalled

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def bandwidth(text: str) -> float:
    """Bits a second of "1Gbit", "100mbit" or "25G"; what argparse reports otherwise."""
    found = re.fullmatch(r"([0-9.eE+-]+) ?([kmgt]?)(bit|bps|bit/s)?", text.strip().lower())
    value = _number(found.group(1)) if found else None
    if found is None or value is None or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no bandwidth: write 100Mbit or 1Gbit")
    return value * PREFIXES[found.group(2)]


def duration(text: str) -> float:
    """Seconds of "50us", "80ms" or "1.5s"; what argparse reports otherwise."""
    found = re.fullmatch(r"([0-9.eE+-]+) ?(s|ms|us|ns)", text.strip().lower())
    value = _number(found.group(1)) if found else None
    if found is None or value is None or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 50us or 80ms")
    return value * SECONDS[found.group(2)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def add_options(parser: argparse.ArgumentParser, *, model_required: bool = True) -> None:
    """What both commands can be told."""
    words = f"{', '.join(ARCHITECTURES)}, or a JSON file of layers"
    parser.add_argument("--model", required=model_required, metavar="MODEL", help=words)
    parser.add_argument(
        "--backward", type=duration, metavar="TIME", help="of the whole backward pass, as 80ms"
    )
    parser.add_argument(
        "--forward",
        type=duration,
        metavar="TIME",
        help="of everything else in a step (half the backward pass)",
    )
    parser.add_argument(
        "--method", default="ldte_bs", help="a selector that is told a density (%(default)s)"
    )
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help='JSON of measured costs: {"work": {...}, "lines": {...}}',
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="selecting does not hold up the backward pass, which a GPU computes",
    )


def profile_of(options: argparse.Namespace) -> Profile:
    """The model, from its architecture or from a file."""
    if options.model in ARCHITECTURES:
        profile = replayed(options.model)
    else:
        try:
            profile = Profile.from_json(Path(options.model).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidOption(
                f"model {options.model!r} is none of {', '.join(ARCHITECTURES)}, and no file: "
                f"{error.strerror}"
            ) from None
    if options.backward is not None:
        other_s = profile.other_s
        profile = profile.scaled(options.backward)
        if not other_s:  # a file that tells of layers alone
            profile = replace(profile, other_s=options.backward / 2)
    if options.forward is not None:
        profile = replace(profile, other_s=options.forward)
    return replace(profile, is_apart=True) if options.apart else profile


def costs_of(options: argparse.Namespace) -> tuple[Work, MeasuredNetwork | None]:
    """Work, and lines where the file has any; without a file what was measured on one processor."""
    if options.costs is None:
        return CPU, None
    try:
        document = json.loads(options.costs.read_text(encoding="utf-8"))
        work = Work(**document["work"]) if "work" in document else CPU
        lines = {kind: Line(**line) for kind, line in document.get("lines", {}).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidOption(
            f'costs {str(options.costs)!r}: {error}; {{"work": {{"entry_s": ...}}, '
            '"lines": {"allgather": {"start_s": ..., "byte_s": ...}, "allreduce": {...}, '
            '"alltoall": {...}}}'
        ) from None
    return work, MeasuredNetwork(lines, document.get("world_size")) if lines else None


def load(name: str) -> ModuleType:
    """A module that draws or prints; NotInstalled says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NotInstalled(
            f"{error.name} is not installed: pip install 'hvd-sparse[plot]', or ask for --json"
        ) from error
