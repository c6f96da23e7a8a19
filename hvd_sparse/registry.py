"""Registries that map permanent ids to the classes of selectors, memories and the other parts.

>>> from hvd_sparse.registry import SELECTORS
>>> SELECTORS.create("topk", density=0.01)
TopK(density=0.01)
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hvd_sparse.checks import hint_of
from hvd_sparse.errors import InvalidOption, UnknownName

PartType = TypeVar("PartType", bound=type)


class Registry:
    """The classes of one kind of part, for example of all selectors, by id. They are frozen
    dataclasses, whose fields are the options. ``get``, ``create`` and ``resolve`` return Any,
    because this layer knows no part's base class.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type] = {}

    def register(self, id: str) -> Callable[[PartType], PartType]:
        """Return a decorator that registers a class under ``id`` and sets its attributes ``id`` and
        ``paper``. ``paper`` is the key in ``papers.bib`` that the class's docstring gives as
        "Paper: key", or None. The decorator raises InvalidOption if the id is in use."""

        def decorate(cls: PartType) -> PartType:
            if id in self._classes:
                raise InvalidOption(
                    f"{self.kind} {id!r} is registered twice: {self._classes[id]!r} and {cls!r}; "
                    "give one of them another id"
                )
            cls.id = id  # type: ignore[attr-defined]
            cited = re.search(r"^ *Paper: (\w+)", cls.__doc__ or "", re.MULTILINE)
            paper = cited[1] if cited else getattr(cls, "paper", None)
            cls.paper = paper  # type: ignore[attr-defined]
            self._classes[id] = cls
            return cls

        return decorate

    def ids(self) -> list[str]:
        return sorted(self._classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def get(self, id: str) -> Any:
        """Return the class that is registered under an id. Raises UnknownName if there is none; the
        message names the most similar id and lists all ids."""
        try:
            return self._classes[id]
        except (KeyError, TypeError):
            raise UnknownName(
                f"no {self.kind} is called {id!r}{hint_of(str(id), self._classes)}; there are: "
                f"{', '.join(self.ids())}"
            ) from None

    def create(self, id: str, **options: object) -> Any:
        """Create a part from its id and its options.

        Raises
        ------
        UnknownName : the id is unknown
        InvalidOption : an option is unknown or missing (the message lists the part's options), or
            its value is invalid
        """
        cls = self.get(id)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        wrong = [f"unknown option {name!r}" for name in sorted(set(options) - set(fields))]
        wrong += [
            f"option {name!r} is missing"
            for name, field in sorted(fields.items())
            if name not in options and field.default is field.default_factory is dataclasses.MISSING
        ]
        if wrong:
            raise InvalidOption(
                f"{self.kind} {id!r}: {', '.join(wrong)}; its options: "
                f"{', '.join(fields) or 'none'}"
            )
        return cls(**options)

    def resolve(self, part: object) -> Any:
        """Return a part from an id, a mapping ``{"id": ..., option: value}``, or the part itself.

        Raises
        ------
        UnknownName : the id is unknown, or the argument is neither an id, nor a mapping, nor a part
        InvalidOption : an option is unknown, missing or invalid

        Examples
        --------
        >>> SELECTORS.resolve({"id": "topk", "density": 0.01})
        TopK(density=0.01)
        """
        if isinstance(part, str):
            return self.create(part)
        if isinstance(part, dict) and "id" in part:
            options = dict(part)
            return self.create(options.pop("id"), **options)
        if type(part) in self._classes.values():
            return part
        raise UnknownName(
            f"{part!r} is no {self.kind}: give an id ({', '.join(self.ids())}), a dict with an "
            "'id', or an object of a registered class"
        )


def configuration(part: Any) -> dict[str, Any]:  # any kind of part, as JSON
    """Return a part as a JSON-serializable mapping, from which ``resolve`` makes an equal part."""
    options = {"id": part.id}
    for field in dataclasses.fields(part):
        if field.init:
            value = getattr(part, field.name)
            value = list(value) if isinstance(value, tuple) else value
            options[field.name] = value.plain() if hasattr(value, "plain") else value
    return options


def import_parts(package: str) -> None:
    """Import the modules of a package, except those named ``_*``, to register their parts."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package}.{module.name}")


SELECTORS = Registry("selector")
MEMORIES = Registry("memory")
CODECS = Registry("codec")
EXCHANGES = Registry("exchange")
SCHEDULES = Registry("schedule")
ENGINES = Registry("engine")
WRITERS = Registry("telemetry writer")

ALL = (SELECTORS, MEMORIES, CODECS, EXCHANGES, SCHEDULES, ENGINES, WRITERS)
