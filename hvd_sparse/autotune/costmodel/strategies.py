"""Rules that make a plan: simple ones, and the published greedy one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hvd_sparse.autotune.costmodel.instance import Instance, Plan
from hvd_sparse.autotune.costmodel.timeline import end_s

FUSION_BYTES = 64 * 1024 * 1024
"""Bytes of Horovod's fusion buffer."""


def no_merge(instance: Instance) -> Plan:
    """Send every layer in a message of its own."""
    return tuple(range(1, instance.size + 1))


def merge_all(instance: Instance) -> Plan:
    """Send one message, when the backward pass is over."""
    return (instance.size,)


def buckets(instance: Instance, nbytes: float) -> Plan:
    """Close a group as soon as it brings ``nbytes`` bytes."""
    ends, filled = [], 0.0
    for position, size in enumerate(_all_nbytes(instance).tolist(), 1):
        filled += size
        if filled >= nbytes or position == instance.size:
            ends.append(position)
            filled = 0.0
    return tuple(ends)


def best_buckets(instance: Instance) -> Plan:
    """Take the quickest of ``buckets`` whose sizes are all bytes, halved up to 23 times."""
    total = float(np.sum(_all_nbytes(instance)))
    sizes = [total / 2**power for power in range(1, 24)]
    return quickest(instance, [buckets(instance, size) for size in sizes])


def as_ready(instance: Instance, fusion_bytes: float = FUSION_BYTES) -> Plan:
    """Send the layers that are ready whenever the wire is free, as Horovod's own fusion does.

    Parameters
    ----------
    instance : layers and costs
    fusion_bytes : most bytes of a message
    """
    layers = np.arange(instance.size)
    compute_s = np.cumsum(instance.compute_s(layers, layers + 1))
    nbytes = instance.nbytes
    ends: list[int] = []
    start, free_s = 0, 0.0
    while start < instance.size:
        now_s = max(free_s, float(compute_s[start]))
        stop, filled = start + 1, float(nbytes[start])
        while (
            stop < instance.size
            and compute_s[stop] <= now_s
            and filled + nbytes[stop] <= fusion_bytes
        ):
            filled += float(nbytes[stop])
            stop += 1
        free_s = now_s + float(instance.wire_s(start, stop))
        ends.append(stop)
        start = stop
    return tuple(ends)


def greedy(instance: Instance, *, as_published: bool = True) -> Plan:
    """Merge a group with the next layer if that saves more than it delays: MGS-SGD.

        delay = backward(next) + ts(both) - ts(group) - ts(next)
                - (the time that the group waits for the wire)
        saved = tc(group) + tc(next) - tc(both)

    Parameters
    ----------
    instance : layers and costs
    as_published : skip the layer whose gradient is ready first, as the authors' loop does: it is
        always sent with the second, and the times by which the rule decides leave that out.  False
        decides about it as about the others

    Notes
    -----
    Paper: shi2020mgs.  Cost: linear in the number of layers.
    """
    size = instance.size
    ends: list[int] = []
    start, compute_s, wire_s = 0, 0.0, 0.0
    if as_published and size > 1:  # by these times the first layer leaves on its own
        compute_s = float(instance.compute_s(0, 1))
        wire_s = compute_s + float(instance.wire_s(0, 1))
        start = 1
    layers = np.arange(size)
    selects_s = instance.select_s(layers, layers + 1)
    sends_s = instance.wire_s(layers, layers + 1)
    for stop in range(start + 1, size):
        ready_s = compute_s + float(instance.compute_s(start, stop))
        waits_s = max(wire_s - ready_s, 0.0)
        both, group = (start, stop + 1), (start, stop)
        selecting_s = instance.select_s(*both) - instance.select_s(*group) - selects_s[stop]
        delay_s = float(instance.backward_s[stop] + selecting_s) - waits_s
        saved_s = float(instance.wire_s(*group) + sends_s[stop] - instance.wire_s(*both))
        if delay_s < saved_s:
            continue
        ends.append(stop)
        compute_s = ready_s
        wire_s = max(wire_s, ready_s) + float(instance.wire_s(*group))
        start = stop
    return (*ends, size)


def greedy_fixed(instance: Instance) -> Plan:
    """Merge as ``greedy`` does, without the authors' slip about the first layer."""
    return greedy(instance, as_published=False)


def quickest(instance: Instance, plans: Iterable[Plan]) -> Plan:
    """Return the quickest plan; of equally quick ones the one with the fewest groups."""
    return min(plans, key=lambda plan: (round(end_s(instance, plan), 12), len(plan)))


def _all_nbytes(instance: Instance) -> np.ndarray:
    total: np.ndarray = instance.nbytes + instance.late_nbytes
    return total
