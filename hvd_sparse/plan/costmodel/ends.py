"""The end of a step's exchange with given groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.plan.costmodel.instance import Instance, Plan, check_plan

ROUNDING = 1e-12


def end_s(instance: Instance, plan: Sequence[int]) -> float:
    """Return the time at which the last message of a plan ends, in seconds.

    Raises
    ------
    InvalidOption
        If the plan does not fit the instance.

    Notes
    -----
    The model of the compute stream and the wire is that of shi2020mgs; late collectives are added.
    Cost: linear in the number of groups.
    """
    stops = np.array(check_plan(plan, instance.size))
    starts = np.concatenate([[0], stops[:-1]])
    ready_s = np.cumsum(instance.compute_s(starts, stops))
    takes_s = instance.wire_s(starts, stops)
    before_s = np.cumsum(takes_s) - takes_s
    # Solve sends(i) = max(sent(i - 1), ready(i)) for all i.
    sends_s = np.maximum.accumulate(ready_s - before_s) + before_s
    late_s = float(np.sum(instance.late_s(starts, stops)))
    return float(sends_s[-1] + takes_s[-1]) + late_s


def simplified(instance: Instance, plan: Sequence[int]) -> Plan:
    """Return the plan with groups joined wherever this does not delay the end of the step.

    Cost: quadratic in the number of groups.
    """
    ends = list(check_plan(plan, instance.size))
    # Sums of the same numbers may be rounded differently.
    limit_s = end_s(instance, ends) * (1 + ROUNDING)
    position = len(ends) - 2
    while position >= 0:
        shorter = ends[:position] + ends[position + 1 :]
        if end_s(instance, shorter) <= limit_s:
            ends = shorter
        position -= 1
    return tuple(ends)


def partition_end_s(instance: Instance, parts: Sequence[Sequence[int]]) -> float:
    """Return the time at which the last message ends for any partition into groups, in seconds.

    Messages are sent in the order in which they become ready.  All messages that are ready when the
    wire is free are sent as one, like Horovod's fusion.  Late collectives start when all messages
    are ready.

    Parameters
    ----------
    instance : layers and costs; without ``per_tensor`` a group is selected as one vector, after its
        last gradient
    parts : groups of layers, with each layer of the instance in one of them
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
            compute_s += float(instance.select(np.sum(instance.numel[part])))
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
