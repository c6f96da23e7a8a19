"""What messages and computing cost: small formulas, and how to fit one to noisy measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption

OUTLIER = 5.0
"""Samples further from their size's median than this many median deviations are dropped."""
DENSE, FP16 = "allreduce_dense", "allreduce_fp16"
SUMS = ("allreduce", DENSE, FP16)
"""Ours, which wait asleep; Horovod's own of float32, and of float16, whose sums may take the
processor longer than the wire takes for twice the bytes: waited for as its users do."""


EXCHANGES = "exchanges"


def _check(owner: Any) -> None:
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
    """Seconds that a message takes: ``start_s + byte_s * nbytes``, the alpha-beta model.

    Attributes
    ----------
    start_s : however little is moved
    byte_s : seconds a byte that a node receives
    """

    start_s: float
    byte_s: float

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, nbytes: Any) -> Any:
        """Seconds of a message, or of each in an array."""
        return self.start_s + self.byte_s * nbytes


@dataclass(frozen=True)
class Work:
    """Seconds of computing that compression costs on a rank.

        select a group of ``numel`` entries:  call_s + entry_s * numel + sort_s * numel *
        log2(numel)
        encode what was selected:             sent_s an entry
        after the wire, once a step:          tensor_s a tensor, dense_s an entry of it, received_s an entry that arrived
        a tensor that a compressor leaves:    submit_s to hand it to Horovod, collect_s to take it back when it is there
        a tensor without a compressor:        dense_submit_s and dense_collect_s

    Horovod's carriers of compressed tensors are part of ``call_s`` and ``tensor_s``.

    Attributes
    ----------
    call_s, entry_s, sort_s, sent_s, dense_s, received_s, tensor_s : as above
    submit_s, collect_s, dense_submit_s, dense_collect_s : as above
    exchanges : the same of exchanges that were timed by themselves, by id; others cost what
        ``allgather`` does, which this is of
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
        object.__setattr__(self, EXCHANGES, described)

    def of(self, exchange: str) -> Work:
        """With this exchange."""
        return self.exchanges.get(exchange, self)

    def select_s(self, numel: Any) -> Any:
        """Of one selection over so many entries, or of each in an array; nothing where there are
        none."""
        numel = np.asarray(numel, np.float64)
        seconds = (
            self.call_s
            + self.entry_s * numel
            + self.sort_s * numel * np.log2(np.maximum(numel, 1.0))
        )
        return np.where(numel > 0, seconds, 0.0)

    def settle_s(self, numel: float, received: float, tensors: int = 0) -> float:
        """Of making so many dense gradients, of ``numel`` entries together, out of ``received``, a
        step."""
        return self.dense_s * numel + self.received_s * received + self.tensor_s * tensors

    def to_dict(self) -> dict[str, float]:
        """JSON-able; ``Work(**described)`` is equal to this."""
        return asdict(self)


def one_after_another(lines: Sequence[Line]) -> Line:
    """Of collectives of which each begins when the one before is over, and all bring the same
    number of bytes: over all bytes."""
    if not lines:
        return Line(0.0, 0.0)
    return Line(
        sum(line.start_s for line in lines), sum(line.byte_s for line in lines) / len(lines)
    )


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """A line through measured messages that a few slow ones do not bend.

    Medians of every size, outliers dropped, then a weighted Theil-Sen estimate: the slope is the
    median of the slopes between all pairs of sizes, weighted by their distance, so that small
    messages, whose differences are noise, have no say in the bandwidth; the start is the median of
    what is left, weighted towards short times.

    Parameters
    ----------
    samples : (bytes received, seconds), of at least two sizes, in any order; any number of each
        size.  All of them on the number of ranks that the line is for

    Returns
    -------
    Line   neither part below 0

    Raises
    ------
    InvalidOption   fewer than two sizes, or a sample that is no pair of finite numbers, 0 or more

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
    """What computing costs, from measurements at two densities: what grows between them is of the
    entries sent.

    Parameters
    ----------
    select : by density, (entries of the tensor, seconds) of selecting and encoding, of at least two
        sizes
    settle : the same of decoding and adding up
    messages : that were decoded, each of as many entries as ``select`` sends; it need not be a
        whole number

    Returns
    -------
    Work   no part below 0

    Raises
    ------
    InvalidOption   other than two densities, the same in both, or what ``fit_line`` refuses
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
    """The mean of those near the median."""
    values = np.array(times)
    median = float(np.median(values))
    away = np.abs(values - median)
    near = away <= OUTLIER * float(np.median(away))
    return float(np.mean(values[near]))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


@dataclass(frozen=True)
class MeasuredWire:
    """Lines fitted to the collectives of one world: ``start_s`` and ``byte_s`` as
    ``network.Network`` has them.

    Attributes
    ----------
    lines : of "allgather", "allreduce" and "alltoall", as far as they are used; over bytes
        received.  "local", of an alltoall inside the nodes, is that of "alltoall" where it is
        missing; Horovod's own sums of float32 and float16, "allreduce_dense" and "allreduce_fp16",
        are those of "allreduce"
    """

    lines: Mapping[str, Line]

    def line(self, kind: str, placement: Any) -> Line:
        """Of a kind of collective; InvalidOption for one that was not measured."""
        if kind not in self.lines and kind in SUMS:
            kind = "allreduce"
        if kind not in self.lines:
            raise InvalidOption(
                f"{kind} was not measured; there are: {', '.join(sorted(self.lines)) or 'none'}"
            )
        return self.lines[kind]

    def local_line(self, placement: Any) -> Line:
        """Of an alltoall inside every node."""
        return self.line("local" if "local" in self.lines else "alltoall", placement)
