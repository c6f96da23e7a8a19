"""The step object: all tensors of a compressor, which of them travel together, and the step that
they are in.

It holds all state of a compressor, and no collective: ``core.step.driver`` and the TensorFlow
frontend move bytes.  What it sends is made in ``core.step.sender``, what comes back is taken in by
``core.step.receiver``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.core.step.buckets import check_merged
from hvd_sparse.core.step.pipeline import Pipeline
from hvd_sparse.core.step.receiver import Receiving
from hvd_sparse.core.step.records import StepRun, Ticket
from hvd_sparse.core.step.sender import Sending
from hvd_sparse.core.step.stats import Stats
from hvd_sparse.core.step.tensor_state import TensorState
from hvd_sparse.core.step.transactions import Staging
from hvd_sparse.core.wire.replicas import Replicas
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.tracing.spans import Spans
from hvd_sparse.types import TensorSpec

logger = logging.getLogger("hvd_sparse")


class Step:
    """All tensors of a compressor and the step that they are in.

    Parameters
    ----------
    configuration : parts and options
    specs : the registered tensors, in the same order on every rank
    buckets : members of every bucket, by position
    kernels : the engine's kernels
    carrier_dtype : of carriers that travel alone; None takes the accumulator's, as dense steps do
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        buckets: Sequence[tuple[int, ...]],
        kernels: Kernels | ModuleType,
        carrier_dtype: Any = None,
    ) -> None:
        self.configuration = configuration
        self.specs = list(specs)
        self._set_buckets(buckets)
        self.pipeline = Pipeline(configuration, kernels)
        self.carrier_dtype = carrier_dtype
        self.stats = Stats()
        self.reduction = "average"
        self.settings_of: Callable[[int], Mapping[str, Any]] | None = None
        self.replicas = Replicas(configuration.check_replicas_every)
        self.staging = Staging(configuration, self.specs)
        self.placement: Placement | None = None
        self.sending = Sending(self)
        self.receiving = Receiving(self)

    def regroup(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """Other tensors travel together from the next step on; the same on all ranks, and between
        steps.

        States belong to tensors, so nothing that is kept back is lost.  InvalidOption in the middle
        of a step, and for groups that cannot be selected from as one where that is asked for.
        """
        self.staging.close()
        self._set_buckets(buckets)

    def regroup_at_start(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """As ``regroup``, where a step is known to begin: what has not come back of the last was
        given up, or soon will."""
        self.staging.leave()
        self._set_buckets(buckets)

    def _set_buckets(self, buckets: Sequence[tuple[int, ...]]) -> None:
        check_merged(self.specs, buckets, self.configuration)
        self.buckets = list(buckets)
        self.bucket_of = {position: i for i, members in enumerate(buckets) for position in members}

    @property
    def exchange(self) -> Exchange:
        """The one that runs."""
        exchange: Exchange = self.pipeline.exchange
        return exchange

    @property
    def spans(self) -> Spans:
        """Tells when parts of the work begin and end."""
        return self.pipeline.spans

    def place(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> None:
        """Before the first step: where the ranks are, for exchanges to which it matters.

        nodes : the node of every rank, None where that is not known
        """
        placement = self.configuration.exchange.placement(rank, world_size, nodes)
        if placement is None:
            return
        members = [position for bucket in self.buckets for position in bucket]
        numel = sum(self.specs[position].numel for position in members)
        self.pipeline.exchange = self.configuration.exchange.resolve(
            self.configuration, placement, numel, len(self.buckets)
        )
        self.placement = placement
        if not self.exchange.sums_first:
            return
        self.staging.placement = placement
        if placement.node_count == 1 and self.configuration.allow_dense:
            logger.warning(
                "all %d ranks are on one node, where exchange %s is a dense sum: every step runs "
                "dense",
                world_size,
                self.exchange.id,  # type: ignore[attr-defined]
            )

    def prepare(self, position: int, state: TensorState) -> None:
        """Tell the memory of a tensor that begins a step how ranks are reduced and what the
        optimizer holds for it.

        ``settings_of``, by position, is set where a frontend knows the optimizer.
        """
        state.memory.step, state.memory.is_average = state.steps, self.reduction == "average"
        if self.settings_of is not None and self.configuration.memory.finishes:
            state.memory.tune(**self.settings_of(position))

    # -- what becomes of a step
    # -------------------------------------------------------------------------------------

    def count(self, ticket: Ticket) -> None:
        """A tensor has completed a step; unless the step leaves no trace."""
        sent = ticket.sent
        counts = {"dense_steps": 1}
        if sent.dense is None:
            kept = self.staging.staged(ticket.position or 0).part
            counts = {
                "sparse_steps": 1,
                "entries_sent": sent.entries,
                "entries_total": kept.stop - kept.start,
            }
        if sent.found is not None:
            counts |= {"passes": sent.found.passes, "one_pass": int(sent.found.is_one_pass)}
            counts |= {"fallbacks": int(sent.found.is_fallback)}
        self.stats.count_tensor(ticket.key, **counts)
        ticket.run.counted.append((ticket.key, counts))
        if sent.observed is not None:
            self.stats.observe(ticket.key, sent.observed, sent.entries)
            ticket.run.observed.append((ticket.key, sent.observed, sent.entries))
        if not ticket.run.is_finite:
            self._uncount(ticket.run)

    def leave_no_trace(self, run: StepRun) -> None:
        """NaN or Inf somewhere in a step: all of its tensors go back to what they were, when their
        next step begins."""
        with self.staging.lock:
            if run.is_finite:
                run.is_finite = False
                self.stats.nonfinite_steps += 1
            self._uncount(run)

    def fail(self, run: StepRun, failure: Exception) -> None:
        """Take a step back, all of its tensors and what was counted of them."""
        self.staging.fail(run, failure)
        with self.staging.lock:
            self._uncount(run)

    def _uncount(self, run: StepRun) -> None:
        for key, counts in run.counted:
            self.stats.count_tensor(key, **{name: -count for name, count in counts.items()})
        run.counted.clear()
        for key, observed, entries in run.observed:
            self.stats.observe(key, observed, entries, sign=-1)
        run.observed.clear()
