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
    instance : layers and costs; without ``per_tensor`` a group is selected from as one vector, when
        its last gradient has come
    parts : groups, with every layer of the instance in one of them
    """
    complete = {max(part): list(part) for part in parts}
    compute_s, messages = 0.0, []
    for layer in range(instance.size):
        if instance.per_tensor:
            compute_s += float(instance.compute_s(layer, layer + 1))
        else:
            compute_s += float(instance.backward_s[layer])
        part = complete.get(layer)
        if part is None:
            continue
        if not instance.per_tensor:
            work, sent = instance.work, float(np.sum(instance.sent[part]))
            compute_s += float(work.select_s(np.sum(instance.numel[part]))) + work.sent_s * sent
        messages.append((compute_s, float(np.sum(instance.nbytes[part]))))
    wire_s, waiting = 0.0, 0
    while waiting < len(messages):
        start_s, first = max(wire_s, messages[waiting][0]), waiting
        while waiting < len(messages) and messages[waiting][0] <= start_s:
            waiting += 1
        wire_s = start_s + float(
            instance.wire(sum(nbytes for _, nbytes in messages[first:waiting]))
        )
    late_s = float(instance.late(np.sum(instance.late_nbytes)))
    return max(wire_s, compute_s) + late_s
