"""Groups of layers in any order and of any members, not only of neighbours: what buckets are that no plan has made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .instance import Instance


def partition_end_s(instance: Instance, parts: Sequence[Sequence[int]]) -> float:
    """When the last message is through, as ``timeline.end_s`` has it.  Messages go in the order in which they are ready.

    instance : with ``per_tensor`` and nothing late, so that compute ends do not depend on the groups
    parts : every layer of the instance in one of them
    """
    layers = np.arange(instance.size)
    compute_s = np.cumsum(instance.compute_s(layers, layers + 1))
    wire_s = 0.0
    for members in sorted(parts, key=max):
        nbytes = float(np.sum(instance.nbytes[list(members)]))
        wire_s = max(wire_s, float(compute_s[max(members)])) + float(instance.wire(nbytes))
    return max(wire_s, float(compute_s[-1]))
