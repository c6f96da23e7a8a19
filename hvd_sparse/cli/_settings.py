"""Options of ``advise`` and ``simulate`` that describe a model, a network and costs."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES, replayed
from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.autotune.costmodel.network import MeasuredNetwork
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.autotune.costmodel.published import CPU
from hvd_sparse.errors import InvalidOption

PREFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
BITS = {"bit": 1.0, "bps": 1.0, "bit/s": 1.0}
BITS |= {prefix + unit: value for prefix, value in PREFIXES.items() for unit in ("", *BITS)}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
LATENCY_S = 50e-6
"""Latency of a network that no option describes, in seconds."""


def bandwidth(text: str) -> float:
    """Return the bits a second of "1Gbit", "100mbit" or "25G".

    Raises
    ------
    argparse.ArgumentTypeError
        If the text is no bandwidth with its unit.
    """
    found = _measure(text, BITS, "Gbit", "Mbit")
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bandwidth: write 100Mbit or 1Gbit, in bits"
        )
    return found


def duration(text: str) -> float:
    """Return the seconds of "50us", "80ms" or "1.5s".

    Raises
    ------
    argparse.ArgumentTypeError
        If the text is no time with its unit.
    """
    found = _measure(text, SECONDS, "us", "ms", "s")
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 50us or 80ms")
    return found


def _measure(text: str, units: Mapping[str, float], *examples: str) -> float | None:
    """Read a number with its unit; one alone is refused, as people mean different units."""
    number, unit = re.fullmatch(r"([0-9.e+-]*) ?(.*)", text.strip().lower(), re.DOTALL).groups()  # type: ignore
    try:
        value = float(number)
    except ValueError:
        return None
    if not unit:
        each = " or ".join(number + example for example in examples)
        raise argparse.ArgumentTypeError(f"{text!r} has no unit: write {each}")
    return value * units[unit] if unit in units and math.isfinite(value) else None


def add_options(parser: argparse.ArgumentParser, *, model_required: bool = True) -> None:
    """Add the options that both commands have."""
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
    """Return the profile of the model, from its architecture or from a file.

    Raises
    ------
    InvalidOption
        If there is no such model, or its file lacks times that no option gives.
    """
    if options.model in ARCHITECTURES:
        profile = replayed(options.model)
    else:
        profile = Profile.from_json(_text_of(options.model))
        if options.backward is None and not _tells_backward(options.model):
            raise InvalidOption(
                f"model {options.model!r} says of no layer how long its backward pass takes: give "
                "backward_s to all of "
                "them, or say --backward 80ms"
            )
    if options.backward is not None:
        other_s = profile.other_s
        profile = profile.scaled(options.backward)
        if not other_s:  # a file that tells of layers alone
            profile = replace(profile, other_s=options.backward / 2)
    if options.forward is not None:
        profile = replace(profile, other_s=options.forward)
    return replace(profile, is_apart=True) if options.apart else profile


def tells_forward(options: argparse.Namespace) -> bool:
    """Tell whether the model's file has the time of a step outside of the backward pass."""
    if options.model in ARCHITECTURES:
        return False
    document = json.loads(_text_of(options.model))
    return isinstance(document, dict) and bool(document.get("other_s"))


def _tells_backward(model: str) -> bool:
    document = json.loads(_text_of(model))
    layers = document["layers"] if isinstance(document, dict) else document
    return any("backward_s" in layer for layer in layers)


def _text_of(model: str) -> str:
    try:
        return Path(model).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidOption(
            f"model {model!r} is none of {', '.join(ARCHITECTURES)}, and no file: {error.strerror}"
        ) from None
    except ValueError as error:
        raise InvalidOption(
            f"model {model!r} is none of {', '.join(ARCHITECTURES)}, and no text in UTF-8: {error}"
        ) from None


def costs_of(options: argparse.Namespace) -> tuple[Work, MeasuredNetwork | None]:
    """Return the costs of computing, and those of collectives where the file has any.

    Without a file they are those measured on one processor.

    Raises
    ------
    InvalidOption
        If the file cannot be read, or holds no costs.
    """
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
