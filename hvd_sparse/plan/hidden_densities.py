"""Densities at which messages hide behind the backward pass, from measurements of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.plan.costmodel.densities import grid_of, largest_hidden
from hvd_sparse.plan.costmodel.lines import Line
from hvd_sparse.plan.group_plan import Buckets, families, measured_costs, restricted
from hvd_sparse.plan.measurements import Samples, Told
from hvd_sparse.plan.route import Route
from hvd_sparse.types import TensorSpec


@dataclass(frozen=True)
class HiddenDensities:
    """The chosen densities and the measured costs; the same on all ranks.

    Attributes
    ----------
    c_max : largest compression ratio; no density is below 1 / c_max
    densities : density of every compressed tensor with a gradient in a measured step, by name
    hidden : number of messages that end before the next message is ready
    messages : number of all messages
    backward_s : seconds from the first gradient to the last, including selection
    exposed_s : predicted seconds from the last gradient to the end of the last message
    wire : time of a message, as a line in the bytes that a rank receives
    """

    c_max: float
    densities: dict[str, float]
    hidden: int
    messages: int
    backward_s: float
    exposed_s: float
    wire: Line

    def to_dict(self) -> dict[str, object]:
        """Return it as a JSON-serializable dict, for ``HiddenDensities.from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Told) -> HiddenDensities:
        """Return the densities from their dict."""
        return cls(**{**told, "wire": Line(**told["wire"])})

    def __str__(self) -> str:
        found = self.densities.values()
        return (
            f"densities from {min(found, default=1.0):.3g} to {max(found, default=1.0):.3g}, at "
            f"which {self.hidden} of {self.messages} messages hide behind a backward pass of "
            f"{1e3 * self.backward_s:.1f} ms, and the exchange ends "
            f"{1e3 * self.exposed_s:.1f} ms after it (a message takes "
            f"{1e3 * self.wire.start_s:.2f} ms and {1e9 * self.wire.byte_s:.2f} ns a byte received)"
        )


def make_hidden(
    route: Route,
    specs: Sequence[TensorSpec],
    told: Sequence[Told],
    samples: Sequence[Samples],
    buckets: Buckets,
    c_max: float,
) -> HiddenDensities:
    """Return the largest density of every message at which it hides; see ``largest_hidden``.

    The slowest rank's times are used, because all ranks wait for it. All tensors of a message have
    the same density. Tensors without a gradient in the measured steps keep the least density.

    Parameters
    ----------
    route : the collectives of a message
    specs : the registered tensors
    told : ``Measurements.to_dict`` of every rank; rank 0 has measured at least one step
    samples : times of the route's collectives on every rank
    buckets : the messages, by the positions of their tensors
    c_max : largest compression ratio

    Notes
    -----
    Paper: shi2020lags, from its abstract. Derived: the rule by which a layer's exchange hides.
    """
    costs = measured_costs(route, specs, told, samples, buckets)
    positions = {spec.key: position for position, spec in enumerate(specs)}
    grid = grid_of(1.0 / c_max, 1.0)
    densities: dict[str, float] = {}
    hidden = messages = 0
    backward_s = exposed_s = 0.0
    for keys in families(told[0]["seen"], route.configuration, specs):
        ends_s = _ready_s(keys, costs.ready_s, costs.work, route, specs)
        mine = restricted(buckets, (positions[key] for key in ends_s))
        ready = sorted((max(ends_s[specs[i].key] for i in bucket), bucket) for bucket in mine)
        ready_s = np.array([at_s for at_s, _ in ready])
        takes_s = np.array(
            [costs.wire(_received(route, specs, bucket, grid)) for _, bucket in ready]
        )
        chosen = largest_hidden(ready_s, takes_s)
        for number, (_, bucket) in zip(chosen, ready):
            densities |= {specs[i].key: float(grid[number]) for i in bucket}
        ends = _wire_ends(ready_s, takes_s, chosen)
        hidden += int(np.sum(ends[:-1] <= ready_s[1:]))
        messages += len(ready)
        backward_s += float(ready_s[-1])
        exposed_s += float(ends[-1] - ready_s[-1])
    return HiddenDensities(c_max, densities, hidden, messages, backward_s, exposed_s, costs.wire)


def _ready_s(
    keys: Sequence[str],
    ready_s: Mapping[str, float],
    work: Line,
    route: Route,
    specs: Sequence[TensorSpec],
) -> dict[str, float]:
    """Return the times at which the compressed tensors are encoded, in backward order."""
    by_key = {spec.key: spec for spec in specs}
    ends_s, own_s = {}, 0.0
    for key in sorted(keys, key=lambda key: ready_s[key]):
        spec = by_key[key]
        if route.configuration.is_sparse(spec.shape, spec.numel):
            own_s += float(work(spec.numel))
            ends_s[key] = ready_s[key] + own_s
    return ends_s


def _received(
    route: Route, specs: Sequence[TensorSpec], bucket: Sequence[int], grid: np.ndarray
) -> np.ndarray:
    """Return the bytes that a rank receives for a bucket at each density, float64 [densities]."""
    codec = route.configuration.codec
    total = np.zeros(len(grid))
    for numel in (specs[position].numel for position in bucket):
        sent = [count_from_density(numel, d) * codec.entry_bytes(numel, d) for d in grid.tolist()]
        total += [route.received(numel, float(nbytes))[0] for nbytes in sent]
    return np.maximum.accumulate(total)


def _wire_ends(ready_s: np.ndarray, takes_s: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Return the times at which the messages end, float64 [messages]."""
    ends, free_s = [], 0.0
    for at_s, sizes_s, number in zip(ready_s.tolist(), takes_s, chosen):
        free_s = max(free_s, at_s) + float(sizes_s[number])
        ends.append(free_s)
    return np.array(ends)
