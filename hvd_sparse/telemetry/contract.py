"""Base class of the telemetry writers, and the records that they write.

A writer describes where records go. Writers can be compared and converted to JSON, like selectors
and codecs. A writer's ``open`` returns a sink, which writes the records. A record is a
JSON-serializable mapping. Its field "event" is one of

    run      the first record, about the run: name, rank, world_size, config, shapes of tensors, ...
    step     measurements of a compressor's step (made by ``frontend.recorder``)
    metrics  metrics that the program passed to ``log``

All records have "step", the number of completed steps; "seconds" since recording began; and "time",
the seconds since 1970.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Union

from hvd_sparse.checks import check_truth
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import WRITERS
from hvd_sparse.types import Option, Report

COMMON_FIELDS = frozenset({"event", "step", "seconds", "time"})

UNREADABLE = (TypeError, ValueError, OverflowError, RuntimeError)
"""What ``int`` and ``float`` raise for objects that are no numbers, such as torch's vectors."""

Function = Callable[[Report], object]
"""A writer that is a function of the user, called with each record."""


@dataclass(frozen=True)
class Place:
    rank: int = 0
    world_size: int = 1

    def path(self, path: str) -> str:
        """Return the path of this rank's file or folder. It may be an address, such as
        ``gs://bucket/run``. The rank's number replaces ``{rank}`` in ``path``. Without ``{rank}``,
        the number is inserted before the suffix, except on rank 0. A leading ``~`` stands for the
        home folder."""
        path = os.path.expanduser(path)
        if "{rank}" in path:
            return path.replace("{rank}", str(self.rank))
        stem, suffix = os.path.splitext(path.rstrip("/"))
        return path if self.rank == 0 else f"{stem}.{self.rank}{suffix}"


@dataclass(eq=False)
class Sink:
    """An open writer. ``write`` writes a record; ``close`` closes the writer's files and
    connections. Warnings contain ``name`` and ``remedy``."""

    write: Callable[[Report], object]
    close: Callable[[], object]
    name: str = ""
    remedy: str = ""
    _began_s: float = field(default_factory=time.monotonic, init=False)

    def log(self, step: int, **metrics: Option) -> None:
        """Write a record of metrics in a program without a compressor (which has its own ``log``).

        Parameters
        ----------
        step : number of completed steps, an integer of any kind
        metrics : numbers by name, such as ``loss``, ``accuracy`` or ``bytes_sent``. The names
            "event", "seconds" and "time" raise InvalidOption
        """
        check_names(metrics)
        self.write(stamped("metrics", whole_of(step), self._began_s, numbers_of(metrics)))


@dataclass(frozen=True)
class Writer(ABC):
    """Base class of the writers. Each writer is a frozen dataclass, registered in ``WRITERS``.

    Parameters
    ----------
    all_ranks : True if every rank writes, False if only rank 0 writes
    """

    id: ClassVar[str]
    paper: ClassVar[str | None] = None
    remedy: ClassVar[str]
    """Advice to the user, for error messages about a writer that cannot write."""

    all_ranks: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_truth(self.all_ranks, f"all_ranks of writer {self.id!r}")

    @abstractmethod
    def open(self, place: Place = Place()) -> Sink:  # noqa: B008 - frozen
        """Return this rank's sink, which writes the records. Raises InvalidOption if a package is
        missing or the destination cannot be written."""


Writers = Union[bool, tuple[Union[Writer, Function], ...]]
"""The option ``telemetry`` after ``resolve_writers``: a bool, or a tuple of writers."""


def resolve_writers(given: Option) -> Writers:
    """Return the option ``telemetry``, with its writers as objects.

    The option is a bool, a writer, or a list of writers. A writer is an id, a mapping ``{"id": ...,
    option: value}``, a ``Writer``, or a function that is called with each record. True and False
    are returned unchanged.

    >>> resolve_writers(["tensorboard", {"id": "jsonl", "path": "run.jsonl"}])[1]
    JsonLines(all_ranks=False, path='run.jsonl')
    """
    if isinstance(given, bool):
        return given
    several = given if isinstance(given, (list, tuple)) else [given]
    return tuple(_resolve_writer(each, given) for each in several) or False


def _resolve_writer(each: Option, given: Option) -> Writer | Function:
    known = WRITERS.ids()
    is_named = isinstance(each, str) and each in known
    if is_named or isinstance(each, Writer) or (isinstance(each, dict) and each.get("id") in known):
        found: Writer = WRITERS.resolve(each) if not isinstance(each, Writer) else each
        return found
    if callable(each) and not isinstance(each, type):
        return each  # type: ignore[no-any-return] # a user's
    raise InvalidOption(
        f"telemetry is {given!r}: give True, False, a function of a record, or a writer "
        f"({', '.join(map(repr, known))}) as an id, a dict with an 'id' and options, or an "
        "object; several go into a list"
    )


def check_names(metrics: Iterable[str]) -> None:
    for name in COMMON_FIELDS & set(metrics):
        raise InvalidOption(
            f"metric {name!r} has the name of a field that all records have: give it another name, "
            f"for example {f'my_{name}'!r}"
        )


def whole_of(step: Option) -> int:
    """Return the option ``step`` of ``log`` as an int. Programs give integers of numpy, torch and
    TensorFlow too, which writers cannot convert."""
    try:
        number = int(step)
        is_whole = bool(number == step)
    except UNREADABLE:
        is_whole = False
    if not is_whole:
        raise InvalidOption(
            f"step of log() is {step!r}: give the number of completed steps, an integer"
        )
    return number


def numbers_of(metrics: Mapping[str, Option]) -> dict[str, float | None]:
    """Return metrics as floats. NaN and infinity become None, because JSON does not have them."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            # Detach, because torch warns when it converts a tensor that requires a gradient.
            number = float(getattr(value, "detach", lambda value=value: value)())
        except UNREADABLE:
            raise InvalidOption(
                f"metric {name!r} is {value!r}: give a number, such as loss.item()"
            ) from None
        found[name] = number if math.isfinite(number) else None
    return found


def stamped(event: str, step: int, began_s: float, content: Report) -> Report:
    """Return a record of ``content`` with the fields that all records have. ``began_s`` is the
    value of ``time.monotonic()`` when recording began."""
    seconds = round(time.monotonic() - began_s, 6)
    return {"event": event, "step": step, "seconds": seconds, "time": time.time(), **content}


def flat(record: Report) -> dict[str, float]:
    """Return the numbers of a record by tag. The tag is the number's name and the tensor's, for
    example ``density_achieved/layer1.weight``. Tags of values over all tensors end in ``/total``.
    The tag of a program's own metric is its name."""
    if record["event"] == "metrics":
        names = [name for name in record if name not in COMMON_FIELDS]
        return {name: record[name] for name in names if record[name] is not None}
    found = {}
    for whose, values in {"total": record["total"], **record["tensors"]}.items():
        for what, value in values.items():
            if value is not None:
                found[f"{what}/{whose}"] = float(value)
    found["lagging_ranks/total"] = float(len(record["lagging_ranks"] or ()))
    return found
