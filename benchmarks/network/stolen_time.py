"""Stolen time: the share of this machine's cores that other virtual machines have taken."""

from __future__ import annotations

from pathlib import Path

STOLEN, FIRST, LAST = 8, 1, 9
"""Fields of the first line of /proc/stat: time that a core was wanted here and worked elsewhere;
all that is counted once."""


class StolenTime:
    """A counter of stolen time, which counts from its creation."""

    def __init__(self) -> None:
        self._stolen, self._all = _ticks()

    def share(self) -> float:
        """Return the stolen share of the time of all cores since then, idle or not, between 0 and
        1."""
        stolen, everything = _ticks()
        return (stolen - self._stolen) / max(1, everything - self._all)


def _ticks() -> tuple[int, int]:
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    return int(fields[STOLEN]), sum(map(int, fields[FIRST:LAST]))
