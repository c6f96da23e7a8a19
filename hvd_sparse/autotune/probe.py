"""What messages and computing cost here: measured on all ranks at once, by the slowest of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, Callable

import numpy as np

from hvd_sparse.autotune.costmodel.costs import DENSE, FP16, SUMS, Line, Work, fit_line, fit_work
from hvd_sparse.autotune.measured_costs import Measured, Samples
from hvd_sparse.autotune.measurements import ITEM
from hvd_sparse.autotune.probed_tensors import TENSORS, ProbedTensors, wait_for
from hvd_sparse.autotune.processor_time import Stopwatch, cores_there, idle_share
from hvd_sparse.autotune.route import Route, route_of
from hvd_sparse.autotune.submissions import HANDED, Handing, PlainHanding, Users
from hvd_sparse.autotune.timed_collectives import message, received_of_sum
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption

SUBMITTED_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 24)
"""Sizes of a rank's message: up to where a network's buffers no longer count."""
LONG_S = 1.0
"""A size at which a round would take longer is left out, as the smaller ones tell enough of a wire
so slow."""
KINDS = ("allgather", *SUMS, "alltoall")
HANDED_S = 0.02
"""Until all are there, so that taking them back waits for none."""
NUMELS = (1 << 14, 1 << 17, 1 << 20)
DENSITIES = (0.001, 0.03)
"""Two and far apart, so that what an entry of the tensor costs and what one that is sent costs can
be told apart."""
OPTIMIZER, COMPRESSOR = "optimizer: ", "compressor: "
SHARE_S = 0.25
"""To see how many cores there are, and what is used of them at rest."""
WARMUP, LEAST, MOST = 2, 5, 25
"""Rounds: not measured; measured however long they take, and at the most."""


class Prober:
    """Repeats calls on all ranks together.

    Parameters
    ----------
    collective : of ranks that all probe the same, in the same order
    timeout_s : of every wait
    budget_s : after so many seconds of one thing at one size no round is added to the least that
        there must be
    users : sums of Horovod's own; without, the collective's are taken for them
    """

    def __init__(
        self,
        collective: Collective,
        timeout_s: float,
        budget_s: float = 1.0,
        users: Users | None = None,
    ) -> None:
        if collective.world_size < 2:
            raise InvalidOption(
                "one rank has nobody to send to: start several, as horovodrun -np 4 does"
            )
        self._collective, self._timeout_s, self._budget_s, self._users = (
            collective,
            timeout_s,
            budget_s,
            users,
        )
        self._idle, self.cores = 0.0, math.inf

    def share_cores(self) -> None:
        """See how many cores a rank has while all work.  From then on no work takes less time than
        they need for it."""
        self._idle = float(self._tell(idle_share(SHARE_S)).mean())
        self.cores = float(self._tell(cores_there(SHARE_S)).mean())

    def repeat(
        self, what: str, size: float, call: Callable[[], Any], density: float | None = None
    ) -> Samples:
        """Rounds of a call.  Telling the slowest rank's time lets all of them begin the next
        together."""
        for _ in range(WARMUP):
            self._slowest(call)
        seconds: list[float] = []
        while len(seconds) < LEAST or (len(seconds) < MOST and sum(seconds) < self._budget_s):
            seconds.append(self._slowest(call))
        return Samples(what, size, tuple(seconds), density)

    def _slowest(self, call: Callable[[], Any]) -> float:
        watch = Stopwatch()
        call()
        return self._agree(watch.clock_s())

    def _agree(self, clock_s: float, processor_s: float = 0.0) -> float:
        """The slowest rank's; longer, where all threads of all ranks have used more of the cores
        than there are for so long."""
        told = self._tell(clock_s, processor_s)
        return float(max(told[:, 0].max(), told[:, 1].mean() / self.cores))

    def _tell(self, *mine: float) -> np.ndarray:
        """Of all ranks [ranks, numbers]."""
        told = self._collective.allgather(np.array(mine), "hvd_sparse.probe.time").wait(
            self._timeout_s
        )
        return np.asarray(told).reshape(-1, len(mine))

    def messages(self, kind: str, submitted_bytes: Sequence[int]) -> list[Samples]:
        """A collective of all these sizes, ascending, as far as a round does not take too long: of
        two at least."""
        found: list[Samples] = []
        for number, nbytes in enumerate(submitted_bytes):
            longer = nbytes / submitted_bytes[max(0, number - 1)]
            if number >= 2 and longer * float(np.median(found[-1].seconds)) > LONG_S:
                break
            found.append(self.message(kind, nbytes))
        return found

    def message(self, kind: str, nbytes: int) -> Samples:
        """A collective of so many bytes a rank; its size counts as the planner's bytes received do.

        Payloads are never of the last step's length, so Horovod has to agree on each anew: here
        too.  Sums are of the same.
        """
        if kind in (DENSE, FP16) and self._users is not None:
            size = received_of_sum(nbytes, self._collective.world_size)
            return self.repeat(kind, size, self._users.sum(kind, nbytes))
        longer = 0 if kind in SUMS else ITEM
        made = [message(self._collective, kind, nbytes + more) for more in (0, longer)]
        turns, name = cycle(made), f"hvd_sparse.probe.{kind}.{nbytes}"
        return self.repeat(
            kind, made[0].received, lambda: next(turns).start(name).wait(self._timeout_s)
        )

    def hand(self, handing: Handing, label: str = "") -> tuple[Samples, Samples]:
        """Handing ``HANDED`` tensors over, of an entry each, and taking them back when all are
        there.

        The first has what Horovod's thread does with them, as far as the cores are not enough for
        it beside.
        """
        submitting: list[float] = []
        collecting: list[float] = []
        for _ in range(WARMUP + MOST):
            watch = Stopwatch()
            handing.submit()
            submit_s = watch.clock_s()
            time.sleep(HANDED_S)
            submitting.append(self._agree(submit_s, watch.processor_s(self._idle)))
            watch = Stopwatch()
            handing.collect()
            collecting.append(self._agree(watch.clock_s()))
        found = ((f"{label}submit", submitting), (f"{label}collect", collecting))
        first, second = (Samples(what, HANDED, tuple(seconds[WARMUP:])) for what, seconds in found)
        return first, second

    def work(
        self, route: Route, lines: Mapping[str, Line], kernels: Any, numel: int
    ) -> tuple[Samples, Samples]:
        """A tensor's selecting, encoding and handing over; its taking back, with all that the
        exchange computes.

        Of rounds of ``TENSORS``, as steps are: the work on one is over before the scheduler of
        cores that several ranks share, or Horovod's own thread, takes any of its time.  What the
        cores need for the message, before it is there, counts with selecting where they are too few
        for both.  What the exchange's collectives behind the first take is taken out.

        route : at its density, of the codec ``index_value``
        lines : of the collectives
        """
        tensors = ProbedTensors(route, kernels, numel, self._collective)
        late_s = route.late(lines)(TENSORS * route.received(numel, 0.0)[1]) / TENSORS
        selecting: list[float] = []
        settling: list[float] = []
        while not self._is_enough(selecting, settling):
            watch = Stopwatch()
            tensors.send()
            send_s = watch.clock_s()
            wait_for(tensors.pending, self._timeout_s)
            selecting.append(self._agree(send_s, watch.processor_s(self._idle)) / TENSORS)
            watch = Stopwatch()
            tensors.receive(self._timeout_s)
            settling.append(max(0.0, self._agree(watch.clock_s()) / TENSORS - late_s))
        density = route.configuration.density(0)
        found = (
            (f"{route.exchange.id}: {what}", seconds)
            for what, seconds in (("select", selecting), ("settle", settling))
        )
        first, second = (
            Samples(what, numel, tuple(seconds[WARMUP:]), density) for what, seconds in found
        )
        return first, second

    def _is_enough(self, selecting: Sequence[float], settling: Sequence[float]) -> bool:
        """The same on all ranks, as they agree on the seconds."""
        rounds = len(selecting) - WARMUP
        taken_s = TENSORS * (sum(selecting[WARMUP:]) + sum(settling[WARMUP:]))
        return rounds >= LEAST and (rounds >= MOST or taken_s >= self._budget_s)


def probe(
    collective: Collective,
    configurations: Mapping[str, Sequence[Configuration]],
    kernels: Any,
    *,
    timeout_s: float,
    submitted_bytes: Sequence[int] = SUBMITTED_BYTES,
    numels: Sequence[int] = NUMELS,
    budget_s: float = 1.0,
    users: Users | None = None,
) -> Measured:
    """Measure collectives and computing, on all ranks at once, and fit costs to them.  Collective.

    configurations : by exchange, "allgather" among them; of each at two densities, with the codec
        ``index_value``
    users : what programs do without this package: its sums are those of dense steps, and every
        tensor of a step is taken to cost what its handing over takes beyond the rest

    All ranks return the same, as each round counts with the time of the rank that took longest.
    """
    prober = Prober(collective, timeout_s, budget_s, users)
    prober.share_cores()
    messages = {kind: prober.messages(kind, submitted_bytes) for kind in KINDS}
    lines = {
        kind: fit_line([pair for each in found for pair in each.pairs])
        for kind, found in messages.items()
    }
    handed = _all_handed(prober, PlainHanding(collective, timeout_s), users)
    samples = [each for found in (*messages.values(), *handed.values()) for each in found]
    works: dict[str, Work] = {}
    for id, at_densities in configurations.items():
        routes = [route_of(configuration, collective) for configuration in at_densities]
        computed = [
            prober.work(route, lines, kernels, numel) for route in routes for numel in numels
        ]
        select, settle = (
            {
                d: [pair for both in computed if both[i].density == d for pair in both[i].pairs]
                for d in _densities(computed)
            }
            for i in (0, 1)
        )
        found = fit_work(select, settle, routes[-1].messages(max(numels)))
        works[id] = _handed(found, handed)
        samples += [each for both in computed for each in both]
    work = replace(works.pop("allgather"), exchanges=works)
    return Measured(collective.world_size, prober.cores, lines, work, tuple(samples))


def _all_handed(
    prober: Prober, plain: Handing, users: Users | None
) -> dict[str, tuple[Samples, Samples]]:
    """By how tensors are handed over: "" as exchanges hand over carriers, "optimizer: " and
    "compressor: "."""
    handings = (
        {"": plain}
        if users is None
        else {"": plain, OPTIMIZER: users.plain, COMPRESSOR: users.compressed}
    )
    return {label: prober.hand(handing, label) for label, handing in handings.items()}


def _handed(work: Work, handed: Mapping[str, tuple[Samples, Samples]]) -> Work:
    """With what handing a tensor over takes by the optimizer, where that was timed, beyond what the
    rounds had of it."""
    submit_s, collect_s = map(_each_s, handed[""])
    through_s, back_s = map(_each_s, handed.get(OPTIMIZER, handed[""]))
    left_s, left_back_s = map(_each_s, handed.get(COMPRESSOR, handed[""]))
    return replace(
        work,
        call_s=work.call_s + max(0.0, through_s - submit_s),
        tensor_s=work.tensor_s + max(0.0, back_s - collect_s),
        submit_s=left_s,
        collect_s=left_back_s,
        dense_submit_s=through_s,
        dense_collect_s=back_s,
    )


def _each_s(handed: Samples) -> float:
    """Seconds of one tensor."""
    return float(np.median(handed.seconds)) / handed.size


def _densities(computed: Sequence[tuple[Samples, Samples]]) -> list[float]:
    return sorted({each.density for each, _ in computed if each.density is not None})
