"""The walk of one tensor through one step, in its only place:

    memory.compensate -> selector.find -> codec.encode -> memory.update
    codec.decode -> sum in rank order

Exchanges that find out what leaves a rank only when all have spoken (``settles_later``) move
memory.update behind themselves; those that sum before they select (``sums_first``) start the walk
with the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.exchanges.members import Begun, Observed, Outgoing, Part, Waiting
from hvd_sparse.kernels.arrays import as_array
from hvd_sparse.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.kernels.randomness import generator
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors.contract import Context, Found, Miss, Selector
from hvd_sparse.step.summation import check_range, gather
from hvd_sparse.step.taking import bounded, find_in
from hvd_sparse.step.tensor_state import Source, TensorState
from hvd_sparse.step_parts import StepParts
from hvd_sparse.tracing.spans import Spans
from hvd_sparse.types import Memo, Selection, TensorSpec

GROUP_SHARE = 8
"""A pass takes at most one of so many of a tensor's entries along for a choice in its group."""


class Pipeline:
    """The five parts, joined."""

    def __init__(self, configuration: Configuration, kernels: Kernels | ModuleType) -> None:
        self.configuration = configuration
        self.kernels = kernels
        self.exchange: Exchange = configuration.exchange
        self.spans = Spans()
        self.observes = configuration.telemetry is True
        """Norms and waiting times are taken of what is sent now; at some steps."""

    @property
    def selects_late(self) -> bool:
        """Tell whether a gradient may be selected from when its bucket's message is made: the
        carrier, which left before, has neither norms nor a flag of it."""
        exchange = self.exchange
        is_simple = exchange.selects_everywhere and not exchange.settles_later
        return is_simple and not exchange.sums_first and not self.observes

    @property
    def looks_first(self) -> bool:
        """Tell whether a gradient is looked at before its pass: other sums than the last one, which
        skips what is not finite, would spoil the only buffer."""
        return not self.configuration.rollback and not self.configuration.memory.adds_gradient

    def send(
        self,
        state: TensorState,
        gradient: np.ndarray,
        rank: int,
        world_size: int,
        *,
        dense: bool,
        is_summed: bool = False,
        parts: StepParts | None = None,
        begun: Begun | None = None,
    ) -> Outgoing:
        """Take the gradient in and return what this rank sends.

        gradient : flat, C-contiguous, of the accumulator's dtype; read once, not kept
        is_summed : it is the sum over some ranks of this rank's part, for exchanges that sum first
        parts : of the tensor's step, where they are at hand
        begun : the pass, where it was begun (``begin``)
        """
        if self.exchange.sums_first and not is_summed:
            return self._send_whole(state, gradient, world_size, dense=dense)
        if dense:
            self._accumulate(state, gradient, world_size, None)
            state.note_dense()
            return Outgoing(dense=state.memory.take_all(), entries=state.spec.numel)
        if parts is None:
            parts = self.configuration.at_step(state.steps, state.spec, state.pace)
        spans, source, selector = self.spans, state.source, parts.selector
        began_s = spans.now() if spans.is_heard else 0.0
        exchange = self.exchange
        if not exchange.selects_everywhere and not exchange.selects_on(
            rank, world_size, state.steps, selector
        ):
            vector = self._accumulate(state, gradient, world_size, None).vector
            return Outgoing(norm=self._norm(vector), accumulated=vector)
        # Known before the pass, so that the one that adds the gradient takes the entries too.
        aim = _aim_of(state, selector, source.threshold, source.memo)
        accumulated = self._accumulate(state, gradient, world_size, aim, begun)
        holds = state.is_on_device and self._may_hold(parts)
        try:
            added = gradient if accumulated.added is None else accumulated.added
            found = self._find(source, selector, aim, accumulated, added, rank, holds)
            if began_s:
                spans.tell("select", state.spec.key, began_s)
            sent = self.send_found(
                state, parts, found, accumulated.vector, world_size, state.spec.key
            )
            if holds:
                sent.surplus = _surplus(accumulated, found)
            return sent
        # The entries that the pass took are in its list alone.
        except Exception:
            self._put_back(accumulated)
            raise

    def begin(
        self, state: TensorState, gradient: np.ndarray, world_size: int, parts: StepParts
    ) -> Begun:
        """Begin the pass of a tensor on its device, without a wait."""
        source, memory = state.source, state.memory
        aim = _aim_of(state, parts.selector, source.threshold, source.memo)
        memory.step = state.steps
        return Begun(gradient, memory.compensate(gradient, self.kernels, world_size, aim))

    def wait(
        self, state: TensorState, gradient: np.ndarray, world_size: int, parts: StepParts
    ) -> Waiting:
        """Take in the gradient of a tensor that is selected from with its group
        (``group_selection``)."""
        aim = self._aim_of_group(state, parts.selector)
        vector, moments, taking, _ = self._accumulate(state, gradient, world_size, aim)
        taken = None if taking is None else taking.taken
        return Waiting(vector, moments, aim, taken, self._norm(vector))

    def _send_whole(
        self, state: TensorState, gradient: np.ndarray, world_size: int, *, dense: bool
    ) -> Outgoing:
        """Return the gradient, for exchanges that sum before they select; on a dense step with the
        residual of this rank's part."""
        if not self.kernels.moments(gradient).is_finite:
            raise not_finite(gradient, state.spec)
        # A copy: Horovod sums it while the program may write to the gradient.
        whole = gradient.copy()
        if not dense:
            return Outgoing(accumulated=whole)
        state.memory.step = state.steps
        state.memory.compensate(gradient[state.part], self.kernels, world_size)
        whole[state.part] = state.memory.take_all()
        state.note_dense()
        return Outgoing(dense=whole, entries=state.spec.numel)

    def send_nothing(self, state: TensorState, *, dense: bool) -> Outgoing:
        """Return a stand-in for a gradient that is not finite: the carrier has that as a flag, and
        the step leaves no trace."""
        spec, exchange = state.spec, self.exchange
        zeros = np.zeros(spec.numel, spec.accumulator)
        if dense:
            return Outgoing(dense=zeros)
        parts = self.configuration.at_step(state.steps, spec, state.pace)
        nothing = Found(Selection.empty(spec.numel, spec.accumulator), None)
        if not exchange.settles_later and not exchange.sums_first:
            return Outgoing(parts.codec.encode(nothing.selection, self.kernels), found=nothing)
        if exchange.shares_indices and parts.selector.has_shared_indices:
            # The other ranks bring a value for each of these, and a sum wants as many of this one.
            context = self.context(state.source, parts.selector, None, 0)
            nothing = parts.selector.find(zeros, context)
        return Outgoing(found=nothing, accumulated=zeros)

    def _accumulate(
        self,
        state: TensorState,
        gradient: np.ndarray,
        world_size: int,
        aim: Aim | None,
        begun: Begun | None = None,
    ) -> Accumulated:
        memory = state.memory
        if self.looks_first and not self.kernels.moments(gradient).is_finite:
            raise not_finite(gradient, state.spec)
        memory.step = state.steps
        if begun is None:
            accumulated = memory.compensate(gradient, self.kernels, world_size, aim)
        else:
            accumulated = begun.accumulated
        taking, moments = accumulated.taking, accumulated.moments
        is_finite = moments is None or moments.is_finite
        if not is_finite or (taking is not None and taking.nonfinite):
            self._put_back(accumulated)
            raise not_finite(gradient, state.spec)
        return accumulated

    def _may_hold(self, parts: StepParts) -> bool:
        """Tell whether entries that a device's pass took too much may go back with the bucket's
        sums: nothing reads their vector before, and a step that fails has no use for it."""
        return (
            self.configuration.rollback
            and not self.observes
            and not self.exchange.settles_later
            and parts.sends_accumulated
        )

    def _aim_of_group(self, state: TensorState, selector: Selector) -> Aim | None:
        """Return the aim of a tensor that was last selected in a group, at the group's threshold.

        Without ``rollback`` a step that is given up here would lose what was taken, and norms are
        of whole vectors.
        """
        if self.observes or not self.configuration.rollback or state.selected_in == state.spec.key:
            return None
        aim, numel = _aim_of(state, selector, state.threshold, state.memo), state.spec.numel
        # The tensor may hold far more of the group's largest entries than its size tells.
        return aim and aim._replace(capacity=max(aim.capacity, numel // GROUP_SHARE))

    def _put_back(self, accumulated: Accumulated) -> None:
        """Return to the vector what the pass took along: with ``rollback=False`` it is nowhere
        else."""
        if accumulated.taking is not None and accumulated.taking.taken is not None:
            self.kernels.restore(accumulated.vector, accumulated.taking.taken)

    def send_found(
        self,
        state: TensorState,
        parts: StepParts,
        found: Found,
        vector: np.ndarray,
        world_size: int,
        selected_in: str,
    ) -> Outgoing:
        """Return what is sent of a tensor's selection, and keep back the rest.

        vector : what was accumulated
        found : of it alone, chosen from the vector that ``selected_in`` names
        """
        selector, codec, spans = parts.selector, parts.codec, self.spans
        began_s = spans.now() if spans.is_heard else 0.0
        if self.configuration.max_gathered_bytes is not None and not selector.has_shared_indices:
            most = self.configuration.most_entries(state.spec, world_size, codec)
            found = bounded(found, most, vector, self.kernels)
        state.note(found.threshold, found.memo, selected_in)
        if self.exchange.settles_later:
            # What leaves is decided among the ranks: until then the vector holds everything.
            if found.is_taken:
                self.kernels.restore(vector, found.selection)
            return Outgoing(
                entries=found.selection.count,
                norm=self._norm(vector),
                found=found,
                accumulated=vector,
            )
        sent = found.selection
        frame = codec.encode(sent, self.kernels)
        is_exact = parts.sends_accumulated
        is_taken = found.is_taken and is_exact
        if found.is_taken and not is_taken:
            self.kernels.restore(vector, found.selection)
        # The residual keeps what the others will not see, so it needs what they decode.
        if not parts.is_exact:
            sent = codec.decode(frame, self.kernels)
        observed = None
        if self.observes:  # before the memory keeps the rest
            observed = observe(state, vector, sent, is_taken)
        elif state.departures is not None:
            state.departures.note(state.steps, sent.indices)
        state.memory.update(sent, is_exact, self.kernels, is_taken=is_taken)
        if began_s:
            spans.tell("encode", state.spec.key, began_s)
        norm = 0.0
        if observed is not None:  # of what stays
            norm = math.sqrt(observed.kept_squared if is_taken else squared(vector))
        return Outgoing(frame, None, sent.indices.size, norm, found, observed=observed)

    def _find(
        self,
        source: Source,
        selector: Selector,
        aim: Aim | None,
        accumulated: Accumulated,
        gradient: np.ndarray,
        rank: int,
        holds: bool,
    ) -> Found:
        """Select from what the pass took along, or else from the whole vector.

        holds : entries that the pass took too much are not put back here
        """
        vector, taking = accumulated.vector, accumulated.taking
        context = self.context(source, selector, accumulated.moments, rank, gradient, vector)
        if aim is None or taking is None:
            return selector.find(vector, context)
        found = find_in(selector, taking, aim, vector, context, holds=holds)
        if found is not None:
            return found
        miss = Miss(aim, taking.taken.count if taking.taken is not None else None)
        known = taking.brought.moments
        return selector.find(vector, context._replace(miss=miss, moments=known))

    def _norm(self, x: np.ndarray) -> float:
        return math.sqrt(squared(x)) if self.observes else 0.0

    def settle(
        self, state: TensorState, left: Selection | None, returned: Selection | None, memo: Memo
    ) -> None:
        """Keep back what did not leave, after an exchange that settles later.

        left : of this rank's own entries, with the values that were accumulated (or the selector's,
            where it changes them)
        """
        if left is not None:
            parts = self.configuration.at_step(state.steps, state.spec, state.pace)
            changes_values = parts.selector.changes_values
            state.memory.update(left, not changes_values, self.kernels)
        state.note_exchange(returned, memo)

    def context(
        self,
        source: Source,
        selector: Selector,
        moments: Moments | None,
        rank: int,
        gradient: np.ndarray | None = None,
        vector: np.ndarray | None = None,
    ) -> Context:
        """Return the extra inputs of the selector, such as moments, last threshold and memo."""

        return Context(
            kernels=self.kernels,
            moments=moments,
            warm=source.threshold,
            memo=source.memo,
            rng=_draws(source, selector, rank) if selector.needs_rng else None,
            gradient=gradient,
            spec=source.spec,
            kept=vector,
        )

    def receive(
        self,
        spec: TensorSpec,
        parts: Iterable[Part],
        factor: float,
        out: np.ndarray,
        steps: int,
        codec: Codec | None = None,
    ) -> float:
        """Write out = factor * (sum of the parts), in their order, the same on all ranks.

        Returns a magnitude that no entry exceeds by more than rounding, infinite where none is
        known.

        out : flat, of the accumulator's dtype; untouched on any error
        steps : completed steps of the tensor, as when they were sent
        codec : of that step, where it is at hand

        Raises
        ------
        CorruptPayload : a payload is not for this tensor
        NonFiniteGradient : the sum leaves the range of the dtype, of the same bits on all ranks
        """
        began_s = self.spans.now() if self.spans.is_heard else 0.0
        codec = codec or self.configuration.at_step(steps, spec).codec
        arrived = gather(spec, parts, out.dtype, codec, self.kernels)
        is_safe = arrived.is_safe(factor)
        if not is_safe:
            check_range(spec, arrived.parts, factor, self.kernels)
        self.kernels.assemble(out, arrived.parts, factor)
        if began_s:
            self.spans.tell("decode", spec.key, began_s)
        return arrived.most * abs(factor) if is_safe else math.inf


def _draws(source: Source, selector: Selector, rank: int) -> Callable[[], np.random.Generator]:
    """Return what makes a selector's generator."""
    # The same draw on all ranks where they send values of the same indices.
    drawer = None if selector.has_shared_indices else rank
    return partial(generator, getattr(selector, "seed", 0), source.spec.key, source.steps, drawer)


def _aim_of(state: TensorState, selector: Selector, warm: float | None, memo: Memo) -> Aim | None:
    """Return the aim of a tensor's pass; None where it is worth nothing without what the kernels of
    devices bring along."""
    aim = selector.aim(state.spec.numel, warm, memo)
    return None if aim is not None and aim.brings and not state.is_on_device else aim


def _surplus(accumulated: Accumulated, found: Found) -> tuple[np.ndarray, Selection] | None:
    """Return the vector of what a pass took, and those entries that were not found to be sent."""
    taken = None if accumulated.taking is None else accumulated.taking.taken
    if taken is None or not found.is_taken or found.selection.count == taken.count:
        return None
    return accumulated.vector, taken.without(found.selection)


def not_finite(gradient: np.ndarray, spec: TensorSpec) -> NonFiniteGradient:
    """Return the error for a gradient whose sum with the residual is not finite."""
    bad = int(np.count_nonzero(~np.isfinite(as_array(gradient))))
    what = f"{bad} of {gradient.size} entries of its gradient are NaN or Inf"
    if not bad:
        what = f"gradient + residual leaves the range of {gradient.dtype}"
    error = NonFiniteGradient(
        f"tensor {spec.key!r}: {what}; look for the step's loss, lower the learning rate, or clip "
        "gradients before they are compressed"
    )
    error.is_of_gradient = bad > 0
    return error


def observe(state: TensorState, vector: np.ndarray, sent: Selection, is_taken: bool) -> Observed:
    """Measure for telemetry, before the memory keeps the rest.

    is_taken : the vector has zeros at the sent entries
    """
    there = squared(vector)
    if is_taken:
        kept, there = there, there + squared(sent.values)
    else:
        left = vector[sent.indices]
        kept = there - squared(left) + squared(left - sent.values)
    return Observed(max(kept, 0.0), there, state.waited(sent.indices))


def squared(x: np.ndarray) -> float:
    """Return the squared L2 norm."""
    return float(x.dot(x))
