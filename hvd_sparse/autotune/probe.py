"""Probe of the costs of collectives and computing, on all ranks at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from hvd_sparse.autotune.costmodel.costs import SUMS, Work, fit_line, fit_work
from hvd_sparse.autotune.measured_costs import MeasuredCosts, Timings
from hvd_sparse.autotune.prober import Prober
from hvd_sparse.autotune.route import route_of
from hvd_sparse.autotune.submissions import PlainSubmission, Submission, Users
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.contract import Kernels

SUBMITTED_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 24)
"""Bytes of a rank's message: up to a size at which a network's buffers no longer count."""
KINDS = ("allgather", *SUMS, "alltoall")
NUMELS = (1 << 14, 1 << 17, 1 << 20)
DENSITIES = (0.001, 0.03)
"""Two densities far apart, so that the cost of an entry of the tensor can be told from the cost of
an entry that is sent."""
OPTIMIZER, COMPRESSOR = "optimizer: ", "compressor: "


def probe(
    collective: Collective,
    configurations: Mapping[str, Sequence[Configuration]],
    kernels: Kernels | ModuleType,
    *,
    timeout_s: float,
    submitted_bytes: Sequence[int] = SUBMITTED_BYTES,
    numels: Sequence[int] = NUMELS,
    budget_s: float = 1.0,
    users: Users | None = None,
) -> MeasuredCosts:
    """Measure collectives and computing on all ranks at once, and fit costs to them.  Collective.

    All ranks return the same, as the slowest rank's time of every round counts.

    Parameters
    ----------
    collective : of the ranks
    configurations : by exchange, "allgather" among them; of each at two densities, with the codec
        ``index_value``
    kernels : of the engine
    timeout_s : seconds that one wait may take
    submitted_bytes : sizes of a rank's messages, in bytes, ascending
    numels : entries of the tensors that are selected from
    budget_s : seconds of one operation at one size after which only the least rounds are made
    users : submissions and sums without this package.  Its sums are those of dense steps, and a
        tensor's submission costs what the optimizer's takes

    Raises
    ------
    InvalidOption
        If there is one rank alone.
    ExchangeTimeout
        If a rank does not take part in time.
    """
    prober = Prober(collective, timeout_s, budget_s, users)
    prober.share_cores()
    messages = {kind: prober.messages(kind, submitted_bytes) for kind in KINDS}
    lines = {
        kind: fit_line([pair for each in found for pair in each.pairs])
        for kind, found in messages.items()
    }
    handed = _all_handed(prober, PlainSubmission(collective, timeout_s), users)
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
    return MeasuredCosts(collective.world_size, prober.cores, lines, work, tuple(samples))


def _all_handed(
    prober: Prober, plain: Submission, users: Users | None
) -> dict[str, tuple[Timings, Timings]]:
    """Time the submissions, by label: "" as carriers are submitted, "optimizer: " and
    "compressor: "."""
    submissions = (
        {"": plain}
        if users is None
        else {"": plain, OPTIMIZER: users.plain, COMPRESSOR: users.compressed}
    )
    return {label: prober.hand(submission, label) for label, submission in submissions.items()}


def _handed(work: Work, handed: Mapping[str, tuple[Timings, Timings]]) -> Work:
    """Return the work with the cost of a tensor's submission by the optimizer.

    Where that was timed, its part beyond the submission that the rounds hold is added.
    """
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


def _each_s(handed: Timings) -> float:
    """Return the seconds of one tensor."""
    return float(np.median(handed.seconds)) / handed.size


def _densities(computed: Sequence[tuple[Timings, Timings]]) -> list[float]:
    return sorted({each.density for each, _ in computed if each.density is not None})
