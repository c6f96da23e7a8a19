"""How many entries a density asks for, and which densities make sense."""

from __future__ import annotations

import math
import numbers

from ..errors import InvalidOption


def check_density(density: float, where: str = "density") -> float:
    """The density as a float, or InvalidOption if it is not a number in (0, 1]."""
    if not is_number(density) or not 0.0 < float(density) <= 1.0:
        raise InvalidOption(
            f"{where} is {density!r}: it is the part of the entries that is sent, a number in (0, 1]; "
            "0.001 sends one entry in a thousand"
        )
    return float(density)


def is_number(value: object) -> bool:
    """Whether this is a finite real number, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def check_cap(cap: float, owner: str) -> None:
    """Refuse bounds on the entries sent that are none."""
    if not is_number(cap) or cap < 1:
        raise InvalidOption(
            f"cap of {owner} is {cap!r}: it bounds the entries sent at cap * k, so a number of at least 1"
        )


def count_from_density(numel: int, density: float) -> int:
    """k = max(1, min(numel, floor(numel * density + 1e-9))); 0 for an empty tensor.

    The small term undoes the rounding of products such as 0.29 * 100, which is 28.999999999999996.
    """
    if numel == 0:
        return 0
    return max(1, min(numel, math.floor(numel * density + 1e-9)))
