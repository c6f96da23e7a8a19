"""What was measured of a world of ranks, and the costs that were fitted to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.autotune.costmodel.costs import Line, Work


@dataclass(frozen=True)
class Samples:
    """Rounds of one thing at one size.

    Attributes
    ----------
    what : a kind of collective; "submit" and "collect", also of the optimizer; "select" and
        "settle" of an exchange
    size : bytes that a rank receives, entries of the tensor, or number of tensors
    seconds : of every round, on the rank that took longest
    density : of selections and what comes of them
    """

    what: str
    size: float
    seconds: tuple[float, ...]
    density: float | None = None

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """(size, seconds), as ``autotune.costmodel.costs.fit_line`` wants them."""
        return [(self.size, seconds) for seconds in self.seconds]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the quartiles of the rounds."""
        low_s, median_s, high_s = np.percentile(self.seconds, [25, 50, 75]).tolist()
        described = {"what": self.what, "size": self.size, "rounds": len(self.seconds)}
        times = {"low_s": low_s, "median_s": median_s, "high_s": high_s}
        return {**described, **times, **({} if self.density is None else {"density": self.density})}


@dataclass(frozen=True)
class Measured:
    """The costs of one world of ranks; the same on all of them.

    Attributes
    ----------
    world_size : of the ranks
    cores : that a rank has while all of them work, on average; at the most
        ``processing.MOST_CORES``
    lines : of every kind of collective, over the bytes that a rank receives
    work : of computing, with the codec ``index_value``, by exchange
    samples : what both were fitted to
    """

    world_size: int
    cores: float
    lines: dict[str, Line]
    work: Work
    samples: tuple[Samples, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; also a file that ``hvd-sparse advise --costs`` reads."""
        lines = {kind: vars(line) for kind, line in self.lines.items()}
        samples = [each.to_dict() for each in self.samples]
        named = {"world_size": self.world_size, "cores": self.cores}
        return {**named, "lines": lines, "work": self.work.to_dict(), "samples": samples}
