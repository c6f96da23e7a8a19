"""Engines with one pass more than they need, in places where no counter of the package looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Mutant:
    """Kernels, one of which does something more before it does its work."""

    def __init__(self, kernels: Any, name: str, extra: Callable[..., Any]) -> None:
        self._kernels = kernels
        self._name = name
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._kernels, name)
        if name != self._name:
            return original

        def with_extra(*arguments: Any) -> Any:
            self._extra(*arguments)
            return original(*arguments)

        return with_extra


def _around(name: str, extra: Callable[..., Any]) -> Callable[[Any], Mutant]:
    return lambda kernels: Mutant(kernels, name, extra)


MUTANTS: dict[str, Callable[[Any], Mutant]] = {
    "looks at the gradient first": _around(
        "accumulate_and_take", lambda gradient, *_: gradient.max()
    ),
    "looks at the residual first": _around(
        "accumulate_and_take", lambda gradient, residual, *_: residual.max()
    ),
    "adds zeros to the residual first": _around(
        "accumulate_and_take", lambda gradient, residual, *_: residual.__iadd__(0)
    ),
    "looks at the new residual afterwards": _around(
        "trim", lambda taken, count, out: None if out is None else out.max()
    ),
    "copies the gradient": _around("accumulate_and_take", lambda gradient, *_: gradient.copy()),
}
