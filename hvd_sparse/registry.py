"""Names for the interchangeable parts.

>>> from hvd_sparse.registry import SELECTORS
>>> SELECTORS.create("topk", density=0.01)
TopK(density=0.01)
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from typing import Any, Callable, TypeVar

from hvd_sparse.errors import InvalidOption, UnknownName

Part = TypeVar("Part", bound=type)


class Registry:
    """Ids of one kind of part, and how to make them.

    A part is a frozen dataclass: its fields are its options, so that its configuration and its
    ``repr`` come from the same place.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type] = {}

    def register(self, id: str) -> Callable[[Part], Part]:
        """Class decorator that gives a part its permanent id."""

        def decorate(cls: Part) -> Part:
            if id in self._classes:
                raise InvalidOption(
                    f"{self.kind} {id!r} is registered twice: {self._classes[id]!r} and {cls!r}"
                )
            cls.id = id  # type: ignore[attr-defined]
            self._classes[id] = cls
            return cls

        return decorate

    def ids(self) -> list[str]:
        """Return the ids of all registered parts, in alphabetical order."""
        return sorted(self._classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def get(self, id: str) -> Any:
        """Return the class behind an id; UnknownName tells the nearest id where there is none."""
        try:
            return self._classes[id]
        except (KeyError, TypeError):
            close = difflib.get_close_matches(str(id), self._classes, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise UnknownName(
                f"no {self.kind} is called {id!r}{hint}; there are: {', '.join(self.ids())}"
            ) from None

    def create(self, id: str, **options: Any) -> Any:
        """Return a new part.

        Parameters
        ----------
        id : one of ``ids()``
        **options : the part's own; those without a default must be given

        Raises
        ------
        UnknownName : no part is registered under this id
        InvalidOption : an option is unknown, missing, or out of its range

        Examples
        --------
        >>> from hvd_sparse.registry import SELECTORS
        >>> SELECTORS.create("topk", density=0.01)
        TopK(density=0.01)
        """
        cls = self.get(id)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        unknown = sorted(set(options) - set(fields))
        missing = sorted(
            name
            for name, field in fields.items()
            if name not in options and field.default is field.default_factory is dataclasses.MISSING
        )
        if unknown or missing:
            wrong = [f"unknown option {name!r}" for name in unknown] + [
                f"option {name!r} is missing" for name in missing
            ]
            raise InvalidOption(
                f"{self.kind} {id!r}: {', '.join(wrong)}; its options: "
                f"{', '.join(fields) or 'none'}"
            )
        return cls(**options)

    def resolve(self, part: Any) -> Any:
        """Return the part that a user's option stands for.

        Parameters
        ----------
        part : an id, an ``{"id": ..., option: value}`` mapping, or a part, which is returned as it
            is

        Raises
        ------
        UnknownName : it is none of these
        InvalidOption : as from ``create``

        Examples
        --------
        >>> from hvd_sparse.registry import SELECTORS
        >>> SELECTORS.resolve({"id": "topk", "density": 0.01})
        TopK(density=0.01)
        """
        if isinstance(part, str):
            return self.create(part)
        if isinstance(part, dict):
            options = dict(part)
            return self.create(options.pop("id", None), **options)
        if type(part) in self._classes.values():
            return part
        raise UnknownName(
            f"{part!r} is no {self.kind}: give an id ({', '.join(self.ids())}), a dict with an "
            f"'id', or a {self.kind} object"
        )


def configuration(part: Any) -> dict[str, Any]:
    """Return a part as a JSON-able mapping that ``Registry.resolve`` turns back into an equal part."""
    options = {
        field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init
    }
    return {
        "id": part.id,
        **{name: list(v) if isinstance(v, tuple) else v for name, v in options.items()},
    }


SELECTORS = Registry("selector")
MEMORIES = Registry("memory")
CODECS = Registry("codec")
EXCHANGES = Registry("exchange")
SCHEDULES = Registry("schedule")
ENGINES = Registry("engine")

ALL = (SELECTORS, MEMORIES, CODECS, EXCHANGES, SCHEDULES, ENGINES)
