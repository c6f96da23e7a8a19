"""Upper tail of the gamma distribution, which numpy does not provide."""

from __future__ import annotations

import math

STEPS = 200


def upper_tail(shape: float, x: float) -> float:
    """Return P(X > x) for a gamma distribution with unit scale.

    This is the regularised upper incomplete gamma function, computed by a power series below
    shape + 1 and by a continued fraction (Lentz) above it, with an error of about 1e-12.
    """
    if x <= 0:
        return 1.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        for n in range(1, STEPS):
            term *= x / (shape + n)
            total += term
            if term < total * 1e-16:
                break
        return 1.0 - scale * total
    b = x + 1.0 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for n in range(1, STEPS):
        a = -n * (n - shape)
        b += 2.0
        d = 1.0 / (a * d + b)
        c = b + a / c
        fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return scale * fraction


def tail_quantile(shape: float, probability: float) -> float:
    """Return the x with P(X > x) = probability, by bisection."""
    high = max(1.0, shape)
    while upper_tail(shape, high) > probability:
        high *= 2.0
    low = 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if upper_tail(shape, middle) > probability else (low, middle)
    return high
