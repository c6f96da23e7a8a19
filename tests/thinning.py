"""A case of a ``--quick`` run takes a part of the data; cases that follow each other take all of
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Datum = TypeVar("Datum")

parts = 1
"""How many parts there are.  Settled before the first test, by ``conftest``."""
QUICK_PARTS = 4


def thinned(data: Iterable[Datum], turn: int) -> Iterator[Datum]:
    """Return every datum; in a quick run every fourth, from another one at each turn."""
    return islice(data, turn % parts, None, parts)
