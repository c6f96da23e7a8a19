"""Partitions of layers: groups of any members in any order, as buckets are that no plan made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.autotune.costmodel.instance import Instance


def partition_end_s(instance: Instance, parts: Sequence[Sequence[int]]) -> float:
    """Return the seconds at which the last message is through, as ``timeline.end_s`` does.

    Messages go in the order in which they are ready.  Those that are ready when the wire gets free
    go as one, as Horovod fuses them.  Late collectives begin when all messages are ready.

    Parameters
    ----------
    instance : with ``per_tensor``, so that compute ends do not depend on the groups
    parts : groups, with every layer of the instance in one of them
    """
    layers = np.arange(instance.size)
    compute_s = np.cumsum(instance.compute_s(layers, layers + 1))
    messages = sorted(
        (float(compute_s[max(part)]), float(np.sum(instance.nbytes[list(part)]))) for part in parts
    )
    wire_s, waiting = 0.0, 0
    while waiting < len(messages):
        start_s, first = max(wire_s, messages[waiting][0]), waiting
        while waiting < len(messages) and messages[waiting][0] <= start_s:
            waiting += 1
        wire_s = start_s + float(
            instance.wire(sum(nbytes for _, nbytes in messages[first:waiting]))
        )
    late_s = float(instance.late(np.sum(instance.late_nbytes)))
    return max(wire_s, float(compute_s[-1])) + late_s
