"""How many entries a density asks for, and which densities make sense."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from functools import lru_cache

from hvd_sparse.errors import InvalidOption


def check_density(density: float, where: str = "density") -> float:
    """The density as a float, or InvalidOption if it is not a number in (0, 1]."""
    if not is_number(density) or not 0.0 < float(density) <= 1.0:
        raise InvalidOption(
            f"{where} is {density!r}: it is the part of the entries that is sent, a number in (0, "
            "1]; "
            "0.001 sends one entry in a thousand"
        )
    return float(density)


def is_number(value: object) -> bool:
    """Whether this is a finite real number, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def check_number(
    value: object, what: str, low: float, high: float = math.inf, remedy: str | None = None
) -> None:
    """Refuse what is not a number between two bounds, neither of which it may be."""
    if not is_number(value) or not low < float(value) < high:  # type: ignore[arg-type]
        above = (
            f"a number above {low:g}"
            if math.isinf(high)
            else f"a number between {low:g} and {high:g}"
        )
        raise InvalidOption(f"{what} is {value!r}: {remedy or above}")


def check_whole(value: object, what: str, least: int) -> None:
    """Refuse what is not a whole number of at least so many."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{what} is {value!r}: a whole number, {least} or more")


def check_choice(value: object, what: str, choices: Iterable[str]) -> None:
    """Refuse what is not one of some names."""
    names = sorted(choices)
    if not isinstance(value, str) or value not in names:
        raise InvalidOption(f"{what} is {value!r}: one of {', '.join(names)}")


def check_truth(value: object, what: str) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{what} is {value!r}: True or False")


def check_cap(cap: float, owner: str) -> None:
    """Refuse bounds on the entries sent that are none."""
    if not is_number(cap) or cap < 1:
        raise InvalidOption(
            f"cap of {owner} is {cap!r}: it bounds the entries sent at cap * k, so a number of at "
            "least 1"
        )


@lru_cache(maxsize=4096)  # asked for several times a tensor and step
def count_from_density(numel: int, density: float) -> int:
    """k = max(1, min(numel, floor(numel * density + 1e-9))); 0 for an empty tensor.

    The small term undoes the rounding of products such as 0.29 * 100, which is 28.999999999999996.
    """
    if numel == 0:
        return 0
    return max(1, min(numel, math.floor(numel * density + 1e-9)))
