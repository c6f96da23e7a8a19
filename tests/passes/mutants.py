"""Engines with one pass more than they need, hidden in places where a counter inside the code would not look."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

Kernels = Any


def as_it_is(kernels: Kernels) -> Kernels:
    return kernels


def _around(name: str, extra: Callable[..., None]) -> Callable[[Kernels], Kernels]:
    """The kernels, one of which does something more before it does its work."""

    def mutate(kernels: Kernels) -> Kernels:
        original = getattr(kernels, name)

        def with_extra(*arguments: Any, **options: Any) -> Any:
            extra(*arguments)
            return original(*arguments, **options)

        return SimpleNamespace(**ChainMap({name: with_extra}, vars(kernels)))

    return mutate


def _look_at_gradient(gradient: np.ndarray, *_: Any) -> None:
    gradient.max()


def _look_at_residual(gradient: np.ndarray, residual: np.ndarray, *_: Any) -> None:
    residual.max()


def _copy_gradient(gradient: np.ndarray, *_: Any) -> None:
    gradient.copy()


MUTANTS: dict[str, Callable[[Kernels], Kernels]] = {
    "none": as_it_is,
    "looks at the gradient first": _around("compensate", _look_at_gradient),
    "looks at the residual first": _around("compensate", _look_at_residual),
    "copies the gradient": _around("compensate", _copy_gradient),
}
