"""Checks of options, and the conversion of a density to a number of entries."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from hvd_sparse.errors import InvalidOption


def check_density(density: float, what: str = "density") -> float:
    """Return the density as a float. Raises InvalidOption unless it is a number in (0, 1].
    ``what`` is the option's name in the error message."""
    if not is_number(density) or not 0.0 < float(density) <= 1.0:
        raise InvalidOption(
            f"{what} is {density!r}: give the fraction of entries to send, a number in (0, 1]; "
            "for example, 0.001 sends one entry in a thousand"
        )
    return float(density)


def hint_of(name: str, names: Iterable[str]) -> str:
    """Return a question, for an error message, that suggests the name most like the misspelt
    ``name``; empty if no name is similar."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def is_number(value: object) -> bool:
    """Return whether a value is a finite real number, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of float
        return False


def check_number(
    value: object,
    what: str,
    low: float,
    high: float = math.inf,
    *,
    with_low: bool = False,
    with_high: bool = False,
) -> None:
    """Raise InvalidOption unless the value is a number between ``low`` and ``high``. The bounds
    themselves are accepted only with ``with_low`` and ``with_high``. ``what`` is the option's name
    in the error message."""
    if (
        is_number(value)
        and (low < value or (with_low and value == low))  # type: ignore[operator]
        and (value < high or (with_high and value == high))  # type: ignore[operator]
    ):
        return
    bounds = f"in {'(['[with_low]}{low:g}, {high:g}{')]'[with_high]}"
    if math.isinf(high):
        bounds = f"of at least {low:g}" if with_low else f"above {low:g}"
    raise InvalidOption(f"{what} is {value!r}: give a number {bounds}")


def check_whole(value: object, what: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{what} is {value!r}: give a whole number, {least} or more")


def check_choice(value: object, what: str, choices: Iterable[str]) -> None:
    names = sorted(choices)
    if not isinstance(value, str) or value not in names:
        raise InvalidOption(f"{what} is {value!r}: give one of {', '.join(names)}")


def check_truth(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise InvalidOption(f"{what} is {value!r}: give True or False")


def option(check: Callable[..., object], default: Any = dataclasses.MISSING, **bounds: Any) -> Any:
    """Return a field that declares an option, for a dataclass that derives from ``Options``. When
    an object is created, ``check`` is called with the value, the option's name and ``bounds``. It
    raises InvalidOption if the value is invalid. If it returns a value other than None, that value
    replaces the given one. If the default is None, the value None is accepted without a check."""
    return dataclasses.field(default=default, metadata={"check": partial(check, **bounds)})


class Options:
    """Base class of frozen dataclasses whose fields are options, declared by ``option``. It checks
    the options when an object is created."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if "check" not in field.metadata or (value is None and field.default is None):
                continue
            kept = field.metadata["check"](value, f"{field.name} of {type(self).__name__}")
            if kept is not None:
                object.__setattr__(self, field.name, kept)


@lru_cache(maxsize=4096)  # called several times per tensor and step
def count_from_density(numel: int, density: float) -> int:
    """Return how many entries to send: max(1, min(numel, floor(numel * density + 1e-9))), or 0 if
    numel is 0. The 1e-9 compensates for rounding: 0.29 * 100 is 28.999999999999996 in floats."""
    if numel == 0:
        return 0
    return max(1, min(numel, math.floor(numel * density + 1e-9)))
