"""LAGS-SGD: densities at which messages hide behind the backward pass, from measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.plan.costs import Costs, Line, restricted
from hvd_sparse.plan.measurements import Told

STEPS = 48
"""Steps of the grid of densities, evenly on a logarithmic scale.  On a grid, rounding seldom
changes the chosen density."""


@dataclass(frozen=True)
class HiddenDensities:
    """The chosen densities and the measured costs; the same on all ranks.

    Attributes
    ----------
    c_max : largest compression ratio; no density is below 1 / c_max
    densities : density of every compressed tensor with a gradient in a measured step, by name
    hidden, messages : number of messages that end before the next is ready, and of all
    backward_s : seconds from the first gradient to the last, including selection
    exposed_s : predicted seconds from the last gradient to the end of the last message
    wire : time of a message, as a line in the bytes that a rank receives
    """

    label: ClassVar[str] = "hiding"
    purpose: ClassVar[str] = "find the densities that hide"
    option: ClassVar[str] = "density='hiding'"

    c_max: float
    densities: dict[str, float]
    hidden: int
    messages: int
    backward_s: float
    exposed_s: float
    wire: Line

    @classmethod
    def make(cls, costs: Costs) -> HiddenDensities:
        """Return the largest density of every message at which it hides; see ``largest_hidden``.

        Paper: shi2020lags, from its abstract. Derived: the rule by which a layer's exchange hides.
        """
        rule = costs.route.configuration.rule
        assert rule is not None and rule.c_max is not None
        specs, least = costs.specs, 1.0 / rule.c_max
        positions = {spec.key: position for position, spec in enumerate(specs)}
        grid = np.geomspace(least, 1.0, STEPS + 1)
        densities: dict[str, float] = {}
        hidden = messages = 0
        backward_s = exposed_s = 0.0
        for keys in costs.families():
            encoded_s = _encoded_s(keys, costs)
            mine = restricted(costs.buckets, (positions[key] for key in encoded_s))
            ready = sorted(
                (max(encoded_s[specs[i].key] for i in bucket), bucket) for bucket in mine
            )
            ready_s = np.array([at_s for at_s, _ in ready])
            takes_s = np.array([costs.wire(_received(costs, bucket, grid)) for _, bucket in ready])
            chosen, ends_s = largest_hidden(ready_s, takes_s)
            for number, (_, bucket) in zip(chosen, ready):
                densities |= {specs[i].key: float(grid[number]) for i in bucket}
            hidden += int(np.sum(ends_s[:-1] <= ready_s[1:]))
            messages += len(ready)
            backward_s += float(ready_s[-1])
            exposed_s += float(ends_s[-1] - ready_s[-1])
        return cls(rule.c_max, densities, hidden, messages, backward_s, exposed_s, costs.wire)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Told) -> HiddenDensities:
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


def largest_hidden(ready_s: np.ndarray, takes_s: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return the largest size of each message at which it hides, and the times at which they end.

    Messages are sent one after the other, each as soon as it is ready. A message hides if it ends
    before the next one is ready:

        available time = ready(next) - max(ready(this), end(previous))

    A message that does not hide at any size gets the least size, and delays the next one. So does
    the last message. ``ready_s`` is float64 [messages], ``takes_s`` [messages, sizes]; both ascend.
    """
    found, ends_s, free_s = [], [], 0.0
    for number, (at_s, sizes_s) in enumerate(zip(ready_s.tolist(), takes_s)):
        sends_s = max(free_s, at_s)
        next_s = float(ready_s[number + 1]) if number + 1 < len(ready_s) else 0.0
        fitting = np.flatnonzero(sends_s + sizes_s <= next_s)
        found.append(int(fitting[-1]) if fitting.size else 0)
        free_s = sends_s + float(sizes_s[found[-1]])
        ends_s.append(free_s)
    return found, np.array(ends_s)


def _encoded_s(keys: Sequence[str], costs: Costs) -> dict[str, float]:
    by_key = {spec.key: spec for spec in costs.specs}
    ends_s, own_s = {}, 0.0
    for key in sorted(keys, key=costs.ready_s.__getitem__):
        spec = by_key[key]
        if costs.route.configuration.is_sparse(spec.shape, spec.numel):
            own_s += float(costs.work(spec.numel))
            ends_s[key] = costs.ready_s[key] + own_s
    return ends_s


def _received(costs: Costs, bucket: Sequence[int], grid: np.ndarray) -> np.ndarray:
    codec = costs.route.configuration.codec
    total = np.zeros(len(grid))
    for numel in (costs.specs[position].numel for position in bucket):
        sent = [count_from_density(numel, d) * codec.entry_bytes(numel, d) for d in grid.tolist()]
        total += [costs.route.received(numel, float(nbytes))[0] for nbytes in sent]
    return np.maximum.accumulate(total)
