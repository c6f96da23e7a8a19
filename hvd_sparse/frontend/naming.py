"""The names of compressors. A compressor has the same name on all ranks, because Horovod matches
collectives by names that contain it. A place is the name of a frontend and the number of a process
set, for example "torch.0"."""

from __future__ import annotations

import gc
import hashlib
import itertools
import weakref
from collections.abc import Sequence

from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import TensorSpec

_LIVE: weakref.WeakValueDictionary[str, Naming] = weakref.WeakValueDictionary()
_MET: dict[str, list[object]] = {}
"""Maps a place to the compressors that have begun a handshake in this world, in order."""
_NUMBERS: dict[str, dict[int, object]] = {}
"""Maps a place to the numbers in use in names, each with an object for its compressor."""


class Naming:
    """One compressor's name: ``given``, the option ``name``, or else a name made from the model,
    the process set and the compressor's number at this place."""

    def __init__(self, place: str, given: str | None) -> None:
        self.place, self._claim = place, object()
        self.name = given or ""
        taken = _NUMBERS.setdefault(place, {})
        self._number = next(n for n in itertools.count() if n not in taken)
        taken[self._number] = self._claim

    def take(self, specs: Sequence[TensorSpec]) -> str:
        """Determine and return the name. Raises InvalidOption if another live compressor has it.
        The compressor keeps its number until ``release``, even if the compressor is deleted before,
        because ranks collect garbage at different times."""
        if not self.name:
            # Compressors of equal models differ in the number or in the process set.
            process_set = self.place.partition(".")[2]
            of_set = "" if process_set in ("", "0") else f".set{process_set}"
            number = f".{self._number}" if self._number else ""
            text = "\n".join(f"{spec.key} {spec.shape} {spec.dtype}" for spec in specs)
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            self.name = f"{digest}{of_set}{number}"
        if _LIVE.get(self.name) not in (None, self):
            gc.collect()  # an unreferenced compressor may still be registered
        if _LIVE.get(self.name) not in (None, self):
            raise InvalidOption(
                f"two compressors have the name {self.name!r}, which would mix up their "
                "collectives: give one of them name=..., or close() the one that is no longer "
                "needed"
            )
        _LIVE[self.name] = self
        return self.name

    def meeting_place(self) -> str:
        """Return the name of a new handshake, which is the same on every rank. The name ends in the
        number of earlier handshakes at this place. The compressor's own name and number may differ
        between ranks, so they are not used: the name depends on the model, and one rank may have
        made an additional compressor. If this compressor has had a handshake before, an elastic
        restart has made a new world, so handshakes are counted from 0 again."""
        met = _MET.setdefault(self.place, [])
        if self._claim in met:
            met.clear()
        met.append(self._claim)
        return f"hvd_sparse.handshake.{self.place}.{len(met) - 1}"

    def release(self) -> None:
        if _LIVE.get(self.name) is self:
            del _LIVE[self.name]
        if _NUMBERS[self.place].get(self._number) is self._claim:
            del _NUMBERS[self.place][self._number]


def check_keys(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InvalidOption(
                f"tensor number {position} has the name {name!r}: give every tensor a non-empty "
                "string as its name"
            )
        if name in seen:
            raise InvalidOption(
                f"two tensors are called {name!r}: give every tensor a name of its own"
            )
        seen.add(name)
