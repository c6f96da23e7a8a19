"""Operations that all ranks repeat together, and their times.

Of every round the slowest rank's time counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from types import ModuleType

import numpy as np

from hvd_sparse.autotune.costmodel.costs import DENSE, FP16, SUMS, Line
from hvd_sparse.autotune.measured_costs import Timings
from hvd_sparse.autotune.measurements import ITEM
from hvd_sparse.autotune.probed_tensors import TENSORS, ProbedTensors, wait_for
from hvd_sparse.autotune.processor_time import Stopwatch, available_cores, idle_share
from hvd_sparse.autotune.route import Route
from hvd_sparse.autotune.submissions import SUBMITTED, Submission, Users
from hvd_sparse.autotune.timed_collectives import received_of_sum, timed_collective
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.errors import InvalidOption

LONG_S = 1.0
"""Seconds of a round above which a size is left out, as smaller ones tell enough of so slow a
wire."""
SETTLED_S = 0.02
"""Seconds after which all submitted results are there, so that collecting them does not wait."""
SHARE_S = 0.25
"""Seconds for which cores are counted, and for which idle threads are watched."""
WARMUP, LEAST, MOST = 2, 5, 25
"""Rounds that are not measured, and the least and most that are."""


class Prober:
    """Repeat operations on all ranks together, and time them.

    Parameters
    ----------
    collective : of ranks that all probe the same, in the same order
    timeout_s : seconds that one wait may take
    budget_s : seconds of one operation at one size after which only the ``LEAST`` rounds are made
    users : sums by Horovod's optimizer; without them the collective's stand for them

    Raises
    ------
    InvalidOption
        If there is one rank alone.
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
        self._collective, self._timeout_s = collective, timeout_s
        self._budget_s, self._users = budget_s, users
        self._idle, self.cores = 0.0, math.inf

    def share_cores(self) -> None:
        """Measure the cores that a rank has while all ranks work.

        From then on no work counts less time than that many cores need for it.
        """
        self._idle = float(self._tell(idle_share(SHARE_S)).mean())
        self.cores = float(self._tell(available_cores(SHARE_S)).mean())

    def repeat(
        self, what: str, size: float, call: Callable[[], object], density: float | None = None
    ) -> Timings:
        """Return the times of repeated calls.  Collective.

        The ranks exchange their times after every round, so that all begin the next one together.

        Parameters
        ----------
        what, size, density : attributes of the result
        call : made once a round
        """
        for _ in range(WARMUP):
            self._slowest(call)
        seconds: list[float] = []
        while len(seconds) < LEAST or (len(seconds) < MOST and sum(seconds) < self._budget_s):
            seconds.append(self._slowest(call))
        return Timings(what, size, tuple(seconds), density)

    def _slowest(self, call: Callable[[], object]) -> float:
        watch = Stopwatch()
        call()
        return self._agree(watch.clock_s())

    def _agree(self, clock_s: float, processor_s: float = 0.0) -> float:
        """Return the slowest rank's seconds, the same on all ranks.

        They are more where the threads of all ranks have used more processor time than the cores
        have in so many seconds.
        """
        told = self._tell(clock_s, processor_s)
        return float(max(told[:, 0].max(), told[:, 1].mean() / self.cores))

    def _tell(self, *mine: float) -> np.ndarray:
        """Return the numbers of all ranks [ranks, numbers]."""
        told = self._collective.allgather(np.array(mine), "hvd_sparse.probe.time").wait(
            self._timeout_s
        )
        return np.asarray(told).reshape(-1, len(mine))

    def messages(self, kind: str, submitted_bytes: Sequence[int]) -> list[Timings]:
        """Time a collective at several sizes, up to one whose round would take too long.

        Parameters
        ----------
        kind : as ``timed_collective`` takes it
        submitted_bytes : bytes that a rank submits, ascending; the first two are always timed
        """
        found: list[Timings] = []
        for number, nbytes in enumerate(submitted_bytes):
            longer = nbytes / submitted_bytes[max(0, number - 1)]
            # A line needs two points.
            if number >= 2 and longer * float(np.median(found[-1].seconds)) > LONG_S:
                break
            found.append(self.message(kind, nbytes))
        return found

    def message(self, kind: str, nbytes: int) -> Timings:
        """Time a collective in which every rank submits ``nbytes`` bytes.

        The result's size is the bytes that a rank receives, as the planner counts them.  An
        allgather's length changes from round to round, as that of payloads does: Horovod agrees
        anew on every length.  A sum's length stays.
        """
        if kind in (DENSE, FP16) and self._users is not None:
            size = received_of_sum(nbytes, self._collective.world_size)
            return self.repeat(kind, size, self._users.sum(kind, nbytes))
        # Two lengths in turn, as Horovod remembers the last one.
        longer = 0 if kind in SUMS else ITEM
        made = [timed_collective(self._collective, kind, nbytes + more) for more in (0, longer)]
        turns, name = cycle(made), f"hvd_sparse.probe.{kind}.{nbytes}"
        return self.repeat(
            kind, made[0].received, lambda: next(turns).start(name).wait(self._timeout_s)
        )

    def hand(self, submission: Submission, label: str = "") -> tuple[Timings, Timings]:
        """Time the submission of ``SUBMITTED`` tensors, and the collection of their results.

        The first holds the work of Horovod's thread, as far as there are too few cores for it.

        Parameters
        ----------
        submission : of the tensors
        label : beginning of the results' names
        """
        submitting: list[float] = []
        collecting: list[float] = []
        for _ in range(WARMUP + MOST):
            watch = Stopwatch()
            submission.submit()
            submit_s = watch.clock_s()
            time.sleep(SETTLED_S)
            submitting.append(self._agree(submit_s, watch.processor_s(self._idle)))
            watch = Stopwatch()
            submission.collect()
            collecting.append(self._agree(watch.clock_s()))
        found = ((f"{label}submit", submitting), (f"{label}collect", collecting))
        first, second = (
            Timings(what, SUBMITTED, tuple(seconds[WARMUP:])) for what, seconds in found
        )
        return first, second

    def work(
        self, route: Route, lines: Mapping[str, Line], kernels: Kernels | ModuleType, numel: int
    ) -> tuple[Timings, Timings]:
        """Time a tensor's selection, encoding and submission, and its decoding and summing.

        A round has ``TENSORS`` tensors, as a step has many: the work on one alone is over before
        the scheduler of shared cores, or Horovod's own thread, takes any of its time.  The
        processor time of the message counts with the selection where there are too few cores for
        both.  The time of the collectives behind the first is taken off.

        Parameters
        ----------
        route : of an exchange, at its configuration's density, with the codec ``index_value``
        lines : cost of every kind of collective
        kernels : of the engine
        numel : entries of a tensor
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
            Timings(what, numel, tuple(seconds[WARMUP:]), density) for what, seconds in found
        )
        return first, second

    def _is_enough(self, selecting: Sequence[float], settling: Sequence[float]) -> bool:
        """Tell whether there are rounds enough; the same on all ranks, as their seconds are."""
        rounds = len(selecting) - WARMUP
        taken_s = TENSORS * (sum(selecting[WARMUP:]) + sum(settling[WARMUP:]))
        return rounds >= LEAST and (rounds >= MOST or taken_s >= self._budget_s)
