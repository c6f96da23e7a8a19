"""Costs of collectives and computing in one world of ranks, and the timings they were fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.autotune.costmodel.costs import Line, Work


@dataclass(frozen=True)
class Timings:
    """The seconds of repeated rounds of one operation at one size.

    Attributes
    ----------
    what : a kind of collective; "submit" or "collect", also of the optimizer; "select" or "settle"
        of an exchange
    size : bytes that a rank receives, entries of the tensor, or number of tensors
    seconds : seconds of every round, on the rank that took longest
    density : density of the selection, where there is one
    """

    what: str
    size: float
    seconds: tuple[float, ...]
    density: float | None = None

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Return (size, seconds) of every round, as ``autotune.costmodel.costs.fit_line`` takes
        them."""
        return [(self.size, seconds) for seconds in self.seconds]

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """Return the lower quartile, the median and the upper quartile, in seconds."""
        low_s, median_s, high_s = np.percentile(self.seconds, [25, 50, 75]).tolist()
        return low_s, median_s, high_s

    def to_dict(self) -> dict[str, object]:
        """Return the quartiles of the rounds, JSON-able."""
        low_s, median_s, high_s = self.quartiles_s
        described = {"what": self.what, "size": self.size, "rounds": len(self.seconds)}
        times = {"low_s": low_s, "median_s": median_s, "high_s": high_s}
        return {**described, **times, **({} if self.density is None else {"density": self.density})}


@dataclass(frozen=True)
class MeasuredCosts:
    """The costs in one world of ranks; the same on all of them.

    Attributes
    ----------
    world_size : number of ranks
    cores : processor cores that a rank has on average while all ranks work; at most
        ``processor_time.MOST_CORES``
    lines : cost of every kind of collective, over the bytes that a rank receives
    work : cost of computing with the codec ``index_value``, by exchange
    samples : timings to which both were fitted
    """

    world_size: int
    cores: float
    lines: dict[str, Line]
    work: Work
    samples: tuple[Timings, ...]

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able, as ``hvd-sparse advise --costs`` reads it from a file."""
        lines = {kind: vars(line) for kind, line in self.lines.items()}
        samples = [each.to_dict() for each in self.samples]
        named = {"world_size": self.world_size, "cores": self.cores}
        return {**named, "lines": lines, "work": self.work.to_dict(), "samples": samples}
