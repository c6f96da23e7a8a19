"""Hooks that do not keep their owner alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hvd_sparse.untyped import Value


def weakly(method: Callable[..., None], *first: object) -> Callable[..., None]:
    """Return a function that calls a bound method while its object lives.

    first : arguments before the hook's own
    """
    owner, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*arguments: Any) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *first, *arguments)

    return call


def remove(hooks: list[Value]) -> None:
    """Take hooks away; one that is gone already stays so."""
    for hook in hooks:
        hook.remove()
