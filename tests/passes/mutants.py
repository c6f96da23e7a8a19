"""Engines with one pass more than they need, in places where no counter of the package looks."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Kernels = Any


def _around(name: str, extra: Callable[..., Any]) -> Callable[[Kernels], Kernels]:
    """The kernels, one of which does something more before it does its work."""

    def mutate(kernels: Kernels) -> Kernels:
        original = getattr(kernels, name)

        def with_extra(*arguments: Any) -> Any:
            extra(*arguments)
            return original(*arguments)

        return SimpleNamespace(**ChainMap({name: with_extra}, vars(kernels)))

    return mutate


MUTANTS: dict[str, Callable[[Kernels], Kernels]] = {
    "looks at the gradient first": _around("accumulate", lambda gradient, *_: gradient.max()),
    "looks at the residual first": _around("accumulate", lambda gradient, residual, *_: residual.max()),
    "adds zeros to the residual first": _around("accumulate", lambda gradient, residual, *_: residual.__iadd__(0)),
    "copies the gradient": _around("accumulate", lambda gradient, *_: gradient.copy()),
}
