"""The state that the sending and receiving halves of a step share: tensors, their states,
counters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np

from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.exchanges.members import Outgoing
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.step.buckets import check_merged
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.records import StepRun, TensorStep
from hvd_sparse.step.stats import BYTES, Stats
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.step.transactions import Transactions
from hvd_sparse.step_parts import StepParts
from hvd_sparse.tracing.spans import Spans
from hvd_sparse.types import Pace, TensorSpec
from hvd_sparse.untyped import Settings

logger = logging.getLogger("hvd_sparse")


MOST_ANSWERS = 1 << 14
"""Upper bound on the cached decisions whether a tensor runs dense at a density."""


class Shared:
    """All tensors of a compressor, which of them travel together, and what becomes of a step.

    Parameters
    ----------
    configuration : parts and options
    specs : the registered tensors, in the same order on every rank
    buckets : members of every bucket, by position
    kernels : the engine's kernels
    carrier_dtype : of carriers that travel alone; None takes the accumulator's, as dense steps do

    Attributes
    ----------
    fixed_parts : of every step, where the density stays as it is; else None
    finishes, has_replica : memories work on every result; carriers have a checksum of results
    bucket_of : the bucket of every member
    pipeline, stats, transactions : what the halves work with
    applied : of each tensor, the checksum of the last applied gradient that is due for a comparison
    reduction : "average" or "sum", as the carriers have told
    placement : where the ranks are, for exchanges to which it matters
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        buckets: Sequence[tuple[int, ...]],
        kernels: Kernels | ModuleType,
        carrier_dtype: type[np.floating] | None = None,
    ) -> None:
        self.configuration = configuration
        self.specs = list(specs)
        self.keys = [spec.key for spec in self.specs]
        self._set_buckets(buckets)
        self.fixed_parts = configuration.fixed_parts
        self.finishes = configuration.memory.finishes
        self.has_replica = configuration.check_replicas_every > 0
        self.pipeline = Pipeline(configuration, kernels)
        self.carrier_dtype = carrier_dtype
        self.reduction = "average"
        self.applied: dict[str, int] = {}
        self.transactions = Transactions(configuration, self.specs)
        self.stats = Stats(self.transactions.lock)
        self.placement: Placement | None = None
        self.settings_of: Callable[[int], Settings] | None = None
        self.pace_of: Callable[[int], Pace] | None = None
        self._is_dense: dict[tuple[int, float | None, int], bool] = {}
        self._started_checksums: dict[str, int] = {}

    @property
    def exchange(self) -> Exchange:
        """The exchange in use."""
        return self.pipeline.exchange

    @property
    def spans(self) -> Spans:
        """Tells when parts of the work begin and end."""
        return self.pipeline.spans

    # -- which tensors travel together, and where the ranks are -----------------------------------

    def regroup(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """Regroup the tensors from the next step on; the same on all ranks, between steps.

        States belong to tensors, so residuals are kept.  InvalidOption during a step, and for
        groups that cannot form one vector although selection is over groups.
        """
        self.transactions.close()
        self._set_buckets(buckets)

    def regroup_at_start(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """Regroup at the known start of a step, when results of the last step are no longer
        awaited."""
        self.transactions.leave()
        self._set_buckets(buckets)

    def reconfigure(self, configuration: Configuration) -> None:
        """Use other densities from the step that begins; the same on all ranks.

        Parameters
        ----------
        configuration : an equal one, as ``Configuration.with_measured`` makes it
        """
        self.configuration = self.pipeline.configuration = configuration
        self.fixed_parts = configuration.fixed_parts

    def put_bucket(self, index: int, members: tuple[int, ...]) -> None:
        """Let these tensors be bucket ``index`` from now on, or a further one behind the last.

        For frontends that learn their buckets one by one, in a step that none of these tensors has
        entered yet; the same on all ranks.
        """
        check_merged(self.specs, [members], self.configuration)
        self.buckets[index : index + 1] = [members]
        self.bucket_of |= dict.fromkeys(members, index)

    def _set_buckets(self, buckets: Sequence[tuple[int, ...]]) -> None:
        check_merged(self.specs, buckets, self.configuration)
        self.buckets = list(buckets)
        self.bucket_of = {position: i for i, members in enumerate(buckets) for position in members}

    def place(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> None:
        """Set, before the first step, the node of every rank, for exchanges that depend on it.

        nodes : the node of every rank; None if unknown
        """
        placement = self.configuration.exchange.placement(rank, world_size, nodes)
        if placement is None:
            return
        numel = sum(self.specs[position].numel for bucket in self.buckets for position in bucket)
        self.pipeline.exchange = self.configuration.resolve_exchange(
            placement, numel, len(self.buckets)
        )
        self.placement = placement
        # The density from which dense is cheaper depends on the exchange, so earlier answers are
        # void.
        self._is_dense.clear()
        if not self.exchange.sums_first:
            return
        self.transactions.placement = placement
        if placement.node_count == 1 and self.configuration.allow_dense:
            logger.warning(
                "all %d ranks are on one node, where exchange %s is a dense sum: every step runs "
                "dense",
                world_size,
                self.exchange.id,
            )

    def prepare(self, position: int, state: TensorState, density: float | None) -> None:
        """Tell the memory of a tensor that begins a step how ranks are reduced, how much is sent,
        and what the optimizer holds for it.

        density : of the step; 1 where it runs dense

        ``settings_of``, by position, is set where a frontend knows the optimizer.
        """
        memory = state.memory
        memory.step, memory.is_average = state.steps, self.reduction == "average"
        memory.density = density
        if self.settings_of is not None and self.finishes:
            memory.tune(**self.settings_of(position))

    def begin(self, position: int, state: TensorState) -> StepParts:
        """Return the parts that a tensor's step is made with, where densities change.

        ``pace_of``, by position, is set where densities follow an optimizer's learning rate.
        """
        if self.pace_of is not None:
            state.pace = self.pace_of(position)
        return self.configuration.at_step(state.steps, state.spec, state.pace)

    def goes_dense(
        self, position: int, parts: StepParts, state: TensorState, world_size: int
    ) -> bool:
        """Return whether a compressed tensor's step runs dense; decided once per density."""
        # From shared quantities alone, so that all ranks decide alike without communication.
        question = (position, parts.density, world_size)
        answer = self._is_dense.get(question)
        if answer is None:
            if len(self._is_dense) >= MOST_ANSWERS:  # another density at every step
                self._is_dense.clear()
            answer = self._is_dense[question] = self.configuration.goes_dense(
                state.spec, state.steps, world_size, self.exchange, self.placement, state.pace
            )
        return answer

    # -- what becomes of a step -------------------------------------------------------------------

    def note_nonfinite(self, ticket: TensorStep, error: NonFiniteGradient, *, dense: bool) -> None:
        """Let NaN or Inf travel as a flag; as a failure where it is asked for, or where the
        gradient is finite and its sum with the residual is not."""
        ticket.is_finite = False
        if self.configuration.on_nonfinite == "raise" or not error.is_of_gradient:
            ticket.fail(error)
        else:
            ticket.outgoing = self.pipeline.send_nothing(ticket.state, dense=dense)

    def count(self, ticket: TensorStep, sent: Outgoing) -> None:
        """Count a tensor's completed step, unless the step leaves no trace."""
        if sent.dense is not None:
            counts = {"dense_steps": 1, BYTES: sent.dense.nbytes}
        else:
            kept = ticket.state.part
            counts = {
                "sparse_steps": 1,
                "entries_sent": sent.entries,
                "entries_total": kept.stop - kept.start,
                BYTES: 0 if sent.frame is None else sent.frame.nbytes,
            }
        found = sent.found
        if found is not None:
            if found.passes:
                counts["passes"] = found.passes
            if found.is_one_pass:
                counts["one_pass"] = 1
            if found.is_fallback:
                counts["fallbacks"] = 1
        self.stats.count_tensor(ticket.key, counts, sent.observed)
        ticket.run.counted.append((ticket.key, counts, sent.observed))
        if not ticket.run.is_finite:
            self._uncount(ticket.run)

    def leave_no_trace(self, run: StepRun) -> None:
        """Roll back all tensors of a step with NaN or Inf, when their next step begins."""
        with self.transactions.lock:
            if run.is_finite:
                run.is_finite = False
                self.stats.nonfinite_steps += 1
            self._uncount(run)

    def give_up(self, position: int) -> bool:
        """Take back a tensor's last step, whose result was thrown away, and what was counted of it.

        Return whether there was one.
        """
        with self.transactions.lock:
            run = self.transactions.give_up(position)
            if run is None:
                return False
            self._uncount(run, self.keys[position])
            return True

    def fail(self, run: StepRun, failure: Exception) -> None:
        """Roll back a step: all of its tensors and their counters."""
        self.transactions.fail(run, failure)
        with self.transactions.lock:
            self._uncount(run)

    def _uncount(self, run: StepRun, only: str | None = None) -> None:
        """Undo the counters of a step, for all of its tensors or for one."""
        for key, counts, observed in run.counted:
            if only in (None, key):
                self.stats.count_tensor(key, counts, observed, sign=-1)
        run.counted = [each for each in run.counted if only not in (None, each[0])]
