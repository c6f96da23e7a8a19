"""Planning problems to try planners on, and the slow ways to solve them."""

from __future__ import annotations

import numpy as np

from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.autotune.costmodel.instance import Instance
from hvd_sparse.autotune.costmodel.published import CPU, NETWORKS, P102_100

DENSITY = 0.001
RANKS = sorted(NETWORKS["omgs-1gbe"])


def published_instance(rng: np.random.Generator, layers: int) -> Instance:
    """Random layers with the authors' constants: top-k on a P102-100, two allgathers over 1 Gbit/s
    Ethernet."""
    numel = np.exp(rng.uniform(np.log(1e3), np.log(1e7), layers)).astype(np.int64)
    ranks = int(rng.choice(RANKS))
    start_s, byte_s = NETWORKS["omgs-1gbe"][ranks]
    sent = numel * DENSITY
    wire = Line(2 * start_s, 2 * byte_s)
    return Instance(
        rng.uniform(1e-4, 1e-2, layers),
        numel,
        sent,
        4 * ranks * sent,
        wire,
        P102_100,
        per_tensor=False,
    )


def our_instance(
    rng: np.random.Generator, layers: int, *, per_tensor: bool, is_late: bool
) -> Instance:
    """Random layers with costs of every kind, wire and computing about as long as each other."""
    numel = np.exp(rng.uniform(np.log(1e3), np.log(1e7), layers)).astype(np.int64)
    nbytes = 8 * DENSITY * numel * rng.uniform(0.5, 2, layers)
    wire, late = Line(*rng.uniform(0, [3e-3, 1e-7])), Line(*rng.uniform(0, [2e-3, 1e-7]))
    work = Work(
        *rng.uniform(
            0, 2 * np.array([value for name, value in vars(CPU).items() if name != "exchanges"])
        )
    )
    backward_s = rng.uniform(0, 4e-3, layers) * rng.choice([0.01, 1.0])
    sent = DENSITY * numel
    if not is_late:
        return Instance(backward_s, numel, sent, nbytes, wire, work, per_tensor)
    return Instance(backward_s, numel, sent, nbytes, wire, work, per_tensor, late, nbytes / 2)


def every_end_s(instance: Instance) -> np.ndarray:
    """When a step ends under each of the 2^(layers - 1) plans."""
    size = instance.size
    plans = np.arange(2 ** (size - 1))
    compute_s, wire_s, late_s = np.zeros((3, plans.size))
    start = np.zeros(plans.size, np.int64)
    for stop in range(1, size + 1):
        ends = (plans >> (stop - 1)) & 1 == 1 if stop < size else np.ones(plans.size, bool)
        first = start[ends]
        compute_s[ends] += instance.compute_s(first, stop)
        wire_s[ends] = np.maximum(wire_s[ends], compute_s[ends]) + instance.wire_s(first, stop)
        late_s[ends] += instance.late_s(first, stop)
        start[ends] = stop
    return wire_s + late_s


def greedy_by_arrays(instance: Instance) -> tuple[int, ...]:
    """The published loop, literally: arrays over the layers 1 to L of the network, the slip
    included."""
    count = instance.size
    p, tb = instance.numel[::-1].copy(), instance.backward_s[::-1].copy()  # p[l] is layer l + 1
    nbytes = instance.nbytes[::-1].copy()
    ts = lambda entries: float(instance.work.select_s(entries))  # noqa: E731
    tc = lambda sent: float(instance.wire(sent)) if sent else 0.0  # noqa: E731

    def times() -> tuple[list[float], list[float]]:
        taus, tauc, taub = [0.0] * count, [0.0] * count, 0.0
        for layer in reversed(range(count)):
            taus[layer] = taub + tb[layer]
            taub = taus[layer] + ts(p[layer])
            before = tauc[layer + 1] + tc(nbytes[layer + 1]) if layer + 1 < count else 0.0
            tauc[layer] = max(before, taub)
        return taus, tauc

    merged = [False] * count
    for layer in range(count - 2, 0, -1):
        taus, tauc = times()
        both, bytes_of_both = p[layer] + p[layer - 1], nbytes[layer] + nbytes[layer - 1]
        waits = tauc[layer] - (taus[layer] + ts(p[layer]))
        delay = tb[layer - 1] + ts(both) - ts(p[layer]) - ts(p[layer - 1]) - waits
        saved = tc(nbytes[layer]) + tc(nbytes[layer - 1]) - tc(bytes_of_both)
        if delay < saved:
            merged[layer] = True
            p[layer - 1], tb[layer - 1], nbytes[layer - 1] = (
                both,
                tb[layer] + tb[layer - 1],
                bytes_of_both,
            )
            p[layer] = tb[layer] = nbytes[layer] = 0.0
    if count > 1:
        merged[count - 1] = True  # nobody asked: it is always in the group of the next
    ends = [count - layer for layer in reversed(range(count)) if not merged[layer]]
    return tuple(ends)
