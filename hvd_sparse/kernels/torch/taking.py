"""Masks of the entries that are taken, and their way to the host by one copy of a known size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hvd_sparse.kernels.torch.vector import fetch
from hvd_sparse.types import Selection


class Taken(NamedTuple):
    """The entries of a mask, on the host.

    found : how many there are
    selection : the entries; None if they exceed the capacity
    also : the numbers that were fetched with them
    """

    found: int
    selection: Selection | None
    also: list[float]


def rounded(x: torch.Tensor, threshold: float) -> float:
    """Return the threshold in the vector's dtype; infinite where it is too large for it."""
    if x.dtype == torch.float64:
        return threshold
    with np.errstate(over="ignore"):
        return float(np.float32(threshold))


def reaching(x: torch.Tensor, magnitudes: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return a mask of the magnitudes that are at least the rounded threshold; zeros never are."""
    cut = rounded(x, threshold)
    return magnitudes >= cut if cut > 0 else magnitudes > 0


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return a mask of the largest magnitudes, without zeros and NaN; of equals, the first.

    x : not empty
    count : 1 to all
    """
    magnitudes = torch.where(x.isnan(), torch.zeros_like(x), x.abs())
    # The value alone: which of several equal entries it comes from is the device's affair.
    least = magnitudes.kthvalue(x.numel() - count + 1).values
    above = magnitudes > least
    ties = (magnitudes == least) & (least > 0)
    return above | (ties & (ties.cumsum(0) <= count - above.sum()))


def take(x: torch.Tensor, mask: torch.Tensor, capacity: int, *also: torch.Tensor) -> Taken:
    """Return the entries of a mask, by one copy and one wait: ``packed``."""
    return unpacked(fetch(packed(x, mask, capacity, *also)), x, capacity, len(also))


def packed(x: torch.Tensor, mask: torch.Tensor, capacity: int, *also: torch.Tensor) -> torch.Tensor:
    """Return the entries of a mask in one piece of the device's memory, int32.

    x, mask : float32 or float64 [n], bool [n]
    capacity : the most entries that are fetched
    also : numbers of the device, exact in float64, to fetch with them
    """
    room = max(0, min(capacity, x.numel()))
    numbers = torch.stack([each.to(torch.float64) for each in (mask.sum(), *also)])
    indices = torch.nonzero_static(mask, size=room, fill_value=0).view(-1)
    return torch.cat(
        [numbers.view(torch.int32), indices.to(torch.int32), x[indices].view(torch.int32)]
    )


def unpacked(fetched: np.ndarray, x: torch.Tensor, capacity: int, also: int) -> Taken:
    """Read what ``packed`` made, on the host: int32, with the same x and capacity.

    also : how many numbers there were
    """
    room, head = max(0, min(capacity, x.numel())), 2 * (1 + also)
    count, *rest = fetched[:head].view(np.float64).tolist()
    count = int(count)
    if count > capacity:
        return Taken(count, None, rest)
    dtype = np.float64 if x.dtype == torch.float64 else np.float32
    entries = fetched[head:]
    taken = entries[:count].view(np.uint32), entries[room:].view(dtype)[:count]
    return Taken(count, Selection(*taken, x.numel()), rest)
