"""Costs of messages and computing: small formulas, and their fit to noisy measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.errors import InvalidOption

Numbers = Any
"""A float, or an array of them: a formula returns the one for a float and the other for an array,
as numpy's operators do, whose types do not tell the two apart."""
OUTLIER = 5.0
"""Median deviations from their size's median beyond which samples are dropped."""
DENSE, FP16 = "allreduce_dense", "allreduce_fp16"
SUMS = ("allreduce", DENSE, FP16)
"""Kinds of sums: this package's, whose waits sleep, and Horovod's own of float32 and of float16,
with the optimizer's wait.  Sums of float16 may take the processor longer than the wire takes for
twice the bytes."""
EXCHANGES = "exchanges"


def _check(owner: Line | Work) -> None:
    for each in fields(owner):
        value = getattr(owner, each.name)
        if each.name == EXCHANGES:
            continue
        if not is_number(value) or value < 0:
            raise InvalidOption(
                f"{each.name} of {type(owner).__name__} is {value!r}: a number, 0 or more"
            )


@dataclass(frozen=True)
class Line:
    """The seconds of a message, ``start_s + byte_s * nbytes``: the alpha-beta model.

    Attributes
    ----------
    start_s : seconds of a message without any bytes
    byte_s : seconds for each byte that a node receives
    """

    start_s: float
    byte_s: float

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, nbytes: Numbers) -> Numbers:
        """Return the seconds of a message of ``nbytes`` bytes, or of each in an array."""
        return self.start_s + self.byte_s * nbytes


@dataclass(frozen=True)
class Work:
    """The seconds of computing that compression costs on a rank.

        select from a group of ``numel`` entries:  call_s + entry_s * numel
                                                   + sort_s * numel * log2(numel)
        encode the selection:                      sent_s an entry
        after the wire, once a step:               tensor_s a tensor, dense_s an entry of it,
                                                   received_s an entry that arrived
        a tensor that a compressor leaves:         submit_s to submit it to Horovod, collect_s to
                                                   collect the result once it is there
        a tensor without a compressor:             dense_submit_s and dense_collect_s

    Horovod's carriers of compressed tensors are part of ``call_s`` and ``tensor_s``.

    Attributes
    ----------
    call_s, entry_s, sort_s, sent_s, dense_s, received_s, tensor_s : as above
    submit_s, collect_s, dense_submit_s, dense_collect_s : as above
    exchanges : costs of the exchanges that were timed by themselves, by id; all others cost as
        much as ``allgather``, to which the attributes above belong
    """

    call_s: float = 0.0
    entry_s: float = 0.0
    sort_s: float = 0.0
    sent_s: float = 0.0
    dense_s: float = 0.0
    received_s: float = 0.0
    tensor_s: float = 0.0
    submit_s: float = 0.0
    collect_s: float = 0.0
    dense_submit_s: float = 0.0
    dense_collect_s: float = 0.0
    exchanges: Mapping[str, Work] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check(self)
        described = {
            id: Work(**each) if isinstance(each, Mapping) else each
            for id, each in self.exchanges.items()
        }
        # frozen: a mapping from JSON is made of records here, once
        object.__setattr__(self, EXCHANGES, described)

    def of(self, exchange: str) -> Work:
        """Return the costs with the exchange of this id."""
        return self.exchanges.get(exchange, self)

    def select_s(self, numel: Numbers) -> np.ndarray:
        """Return the seconds of a selection from ``numel`` entries, or of each in an array.

        A selection from no entries takes none.
        """
        numel = np.asarray(numel, np.float64)
        seconds = (
            self.call_s
            + self.entry_s * numel
            + self.sort_s * numel * np.log2(np.maximum(numel, 1.0))
        )
        return np.where(numel > 0, seconds, 0.0)

    def settle_s(self, numel: float, received: float, tensors: int = 0) -> float:
        """Return the seconds of a step in which the received entries become dense gradients.

        Parameters
        ----------
        numel : entries of all gradients together
        received : entries that arrived
        tensors : number of gradients
        """
        return self.dense_s * numel + self.received_s * received + self.tensor_s * tensors

    def to_dict(self) -> dict[str, float]:
        """Return all of it, JSON-able; ``Work(**described)`` is an equal one."""
        return asdict(self)


def one_after_another(lines: Sequence[Line]) -> Line:
    """Return the cost of collectives of which each begins when the one before is over.

    All bring the same number of bytes; the result is over the bytes of all.
    """
    if not lines:
        return Line(0.0, 0.0)
    return Line(
        sum(line.start_s for line in lines), sum(line.byte_s for line in lines) / len(lines)
    )


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """Fit a line to measured messages, so that a few slow ones do not bend it.

    After the outliers of every size are dropped it is a weighted Theil-Sen estimate.  The slope is
    the median of the slopes between all pairs of sizes, weighted by their distance, so that small
    messages, whose differences are noise, do not decide the bandwidth.  The start is the median of
    the rest, weighted towards short times.

    Parameters
    ----------
    samples : (bytes received, seconds), of at least two sizes, in any order; any number of each
        size.  All of them are of the number of ranks that the line is for

    Returns
    -------
    Line
        Neither part is below 0.

    Raises
    ------
    InvalidOption
        If there are fewer than two sizes, or a sample is no pair of finite numbers of 0 or more.

    Cost: quadratic in the number of sizes.
    """
    by_size: dict[float, list[float]] = {}
    for nbytes, seconds in samples:
        if not (is_number(nbytes) and is_number(seconds) and nbytes >= 0 and seconds >= 0):
            raise InvalidOption(
                f"sample ({nbytes!r}, {seconds!r}): bytes and seconds, finite and 0 or more"
            )
        by_size.setdefault(float(nbytes), []).append(float(seconds))
    if len(by_size) < 2:
        raise InvalidOption(
            f"{len(by_size)} message sizes were measured: a line needs at least two"
        )
    sizes = np.array(sorted(by_size))
    times = np.array([_typical(by_size[size]) for size in sizes.tolist()])
    # Theil and Sen's line, weighted: slopes between all pairs of sizes, of which far ones tell
    # more; a few messages that were held up do not move the median.
    first, second = np.triu_indices(sizes.size, 1)
    distance = sizes[second] - sizes[first]
    byte_s = max(0.0, _weighted_median((times[second] - times[first]) / distance, distance))
    start_s = max(0.0, _weighted_median(times - byte_s * sizes, 1.0 / np.maximum(times, 1e-9)))
    return Line(start_s, byte_s)


def fit_work(
    select: Mapping[float, Iterable[tuple[float, float]]],
    settle: Mapping[float, Iterable[tuple[float, float]]],
    messages: float,
) -> Work:
    """Fit the costs of computing to measurements at two densities.

    The seconds that grow between the densities belong to the entries sent.

    Parameters
    ----------
    select : by density, (entries of the tensor, seconds) of selecting and encoding, of at least two
        sizes
    settle : by density, the same of decoding and summing
    messages : number of messages that were decoded, each of as many entries as ``select`` sends; it
        need not be whole

    Returns
    -------
    Work
        No part is below 0.

    Raises
    ------
    InvalidOption
        If there are not two densities, the same in both, or ``fit_line`` refuses the samples.
    """
    if len(select) != 2 or set(select) != set(settle):
        raise InvalidOption(
            f"densities {sorted(select)} and {sorted(settle)} were measured: two, and the same in "
            "both"
        )
    low, high = sorted(select)
    selecting, settling = (
        {d: fit_line(samples) for d, samples in found.items()} for found in (select, settle)
    )
    sent_s = max(0.0, (selecting[high].byte_s - selecting[low].byte_s) / (high - low))
    received_s = max(0.0, (settling[high].byte_s - settling[low].byte_s) / (high - low) / messages)
    return Work(
        call_s=selecting[low].start_s,
        entry_s=max(0.0, selecting[low].byte_s - sent_s * low),
        sent_s=sent_s,
        dense_s=max(0.0, settling[low].byte_s - received_s * low * messages),
        received_s=received_s,
        tensor_s=settling[low].start_s,
    )


def _typical(times: list[float]) -> float:
    """Return the mean of the times near the median."""
    values = np.array(times)
    median = float(np.median(values))
    away = np.abs(values - median)
    # the mean of what is left is steadier than the median of a handful
    near = away <= OUTLIER * float(np.median(away))
    return float(np.mean(values[near]))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


@dataclass(frozen=True)
class MeasuredWire:
    """Costs that were fitted to the collectives of one world, as ``network.Network`` has them.

    Attributes
    ----------
    lines : by kind, "allgather", "allreduce" and "alltoall" as far as they are used; over bytes
        received.  Where "local" is missing, an alltoall inside the nodes, it costs what "alltoall"
        does; where Horovod's sums "allreduce_dense" and "allreduce_fp16" are, they cost what
        "allreduce" does
    """

    lines: Mapping[str, Line]

    def line(self, kind: str, placement: Placement) -> Line:
        """Return the cost of a kind of collective.

        Raises
        ------
        InvalidOption
            If the kind was not measured.
        """
        if kind not in self.lines and kind in SUMS:
            kind = "allreduce"
        if kind not in self.lines:
            raise InvalidOption(
                f"{kind} was not measured; there are: {', '.join(sorted(self.lines)) or 'none'}"
            )
        return self.lines[kind]

    def local_line(self, placement: Placement) -> Line:
        """Return the cost of an alltoall inside every node."""
        return self.line("local" if "local" in self.lines else "alltoall", placement)
