"""Densities as command lines spell them: a number, names and globs with theirs, or "hiding"."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Union

from hvd_sparse.checks import check_density
from hvd_sparse.density_rule import HIDING, read_hiding
from hvd_sparse.errors import InvalidOption

Spelled = Union[float, dict[str, float], str]
"""A number, a mapping of names and globs, or "hiding"."""
FORMS = (
    'a number in (0, 1], names or globs with theirs, as in "conv*=0.01,*=0.001", or "hiding", in a '
    "training that measures what hides"
)


def read_density(text: str) -> Spelled:
    """Return the option ``density`` that a text stands for.

    Parameters
    ----------
    text : a number; names and globs of tensors with their densities, NAME=DENSITY, behind commas;
        or "hiding", with the largest ratio behind a colon, as in "hiding:300"

    Raises
    ------
    InvalidOption : the text is none of these, or a density is not in (0, 1]

    Examples
    --------
    >>> read_density("0.01")
    0.01
    >>> read_density("conv*=0.01,*=0.001")
    {'conv*': 0.01, '*': 0.001}
    """
    text = text.strip()
    if text.partition(":")[0] == HIDING:
        read_hiding(text)
        return text
    if "=" not in text:
        return _number(text, "density", text)
    told: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.rpartition("=")
        name = name.strip()
        if not name:
            raise InvalidOption(f"density is {text!r}: {part!r} names no tensor; write {FORMS}")
        if name in told:
            raise InvalidOption(f"density is {text!r}, which names {name!r} twice: name it once")
        told[name] = _number(value, f"density for {name!r}", text)
    return told


def _number(value: str, where: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise InvalidOption(f"density is {text!r}, and {value!r} is no number: {FORMS}") from None
    return check_density(number, where)


def density_argument(text: str) -> Spelled:
    """Return ``read_density`` of an argument, as ``argparse`` takes a type.

    Raises
    ------
    argparse.ArgumentTypeError : the text is no density
    """
    try:
        return read_density(text)
    except InvalidOption as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def known_density(text: str) -> Union[float, dict[str, float]]:
    """Return ``density_argument`` where nothing trains, so that nothing can be measured.

    Raises
    ------
    argparse.ArgumentTypeError : the text is no density, or "hiding"
    """
    density = density_argument(text)
    if isinstance(density, str):
        raise argparse.ArgumentTypeError(
            f"density {text!r} is measured in a training run, and there is none here: give a "
            "number, or a number for each name"
        )
    return density


def spell_density(density: Union[float, Mapping[str, float], str]) -> str:
    """Return the text that ``read_density`` reads as this density.

    Examples
    --------
    >>> spell_density({"conv*": 0.01, "*": 0.001})
    'conv*=0.01,*=0.001'
    """
    if isinstance(density, str):
        return density
    if isinstance(density, Mapping):
        return ",".join(f"{name}={value:g}" for name, value in density.items())
    return f"{density:g}"


def plain_density(density: Spelled) -> Union[float, str]:
    """Return a density as files and tables of results hold it: a number, or its spelling."""
    return density if isinstance(density, float) else spell_density(density)
