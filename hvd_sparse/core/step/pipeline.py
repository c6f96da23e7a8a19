"""The walk of one tensor through one step, in its only place:

memory.compensate -> selector.find -> codec.encode -> memory.update   |   codec.decode -> sum in rank order

Exchanges that find out what leaves a rank only when all have spoken (``settles_later``) move
memory.update behind themselves; those that sum before they select (``sums_first``) start the walk
with the sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.core.kernels.randomness import generator
from hvd_sparse.core.step.bounds import bounded
from hvd_sparse.core.step.stats import Observed
from hvd_sparse.core.step.tensor_state import Outgoing, Part, Source, TensorState
from hvd_sparse.errors import CorruptPayload, NonFiniteGradient
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors._aim import Miss
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.tracing.spans import Spans
from hvd_sparse.types import Selection, TensorSpec


class Pipeline:
    """The five parts, joined."""

    def __init__(self, configuration: Configuration, kernels: Kernels | ModuleType) -> None:
        self.configuration = configuration
        self.kernels = kernels
        self.exchange = configuration.exchange
        self.spans = Spans()

    def send(
        self,
        state: TensorState,
        gradient: np.ndarray,
        rank: int,
        world_size: int,
        *,
        dense: bool,
        is_summed: bool = False,
        waits: bool = False,
    ) -> Outgoing:
        """This rank's half: take the gradient in, give out what is sent.

        gradient : flat, C-contiguous, of the accumulator's dtype; read once, not kept
        is_summed : it is the sum over some ranks of this rank's part, for exchanges that sum first
        waits : nothing is selected before the tensor's group is complete
            (``core.step.group_selection``)
        """
        if self.exchange.sums_first and not is_summed:
            return self._send_whole(state, gradient, world_size, dense)
        selector, source = None if dense else self.selector(state.steps), state.source
        selects = (
            selector is not None
            and not waits
            and self.exchange.selects_on(rank, world_size, state.steps, selector)
        )
        aim = (
            selector.aim(gradient.size, source.threshold, source.memo)
            if selector is not None and selects
            else None
        )
        began_s = self.spans.now()
        accumulated = self._accumulate(state, gradient, world_size, aim)
        if selector is None:
            state.note_dense()
            return Outgoing(None, state.memory.take_all(), state.spec.numel, 0.0, None)
        if not selects:
            vector = accumulated.vector
            return Outgoing(None, None, 0, self._norm(vector), None, vector, accumulated.moments)
        try:
            added = gradient if accumulated.added is None else accumulated.added
            found = self._find(source, selector, aim, accumulated, added, rank)
            self.spans.tell("select", state.spec.key, began_s)
            return self.send_found(
                state, selector, found, accumulated.vector, world_size, source.spec.key
            )
        except Exception:
            self._put_back(accumulated)
            raise

    def send_nothing(self, state: TensorState, *, dense: bool) -> Outgoing:
        """What stands in for a gradient that is not finite: the carrier says so, and the step
        leaves no trace."""
        spec = state.spec
        nothing = Found(Selection.empty(spec.numel, spec.accumulator), None)
        if not dense and not self.exchange.settles_later and not self.exchange.sums_first:
            return Outgoing(
                self.codec(state.steps).encode(nothing.selection, self.kernels),
                None,
                0,
                0.0,
                nothing,
            )
        zeros = np.zeros(spec.numel, spec.accumulator)
        return (
            Outgoing(None, zeros, 0, 0.0, None)
            if dense
            else Outgoing(None, None, 0, 0.0, nothing, zeros)
        )

    def _accumulate(
        self, state: TensorState, gradient: np.ndarray, world_size: int, aim: Aim | None
    ) -> Accumulated:
        configuration, kernels = self.configuration, self.kernels
        # Other sums than the last one, which skips what is not finite, would spoil the only buffer
        # there is.
        looks_first = not configuration.rollback and not configuration.memory.adds_gradient
        if looks_first and not kernels.moments(gradient).is_finite:
            raise _not_finite(gradient, state.spec)
        state.memory.step = state.steps
        accumulated: Accumulated = state.memory.compensate(gradient, kernels, world_size, aim)
        if not accumulated.is_finite:
            self._put_back(accumulated)
            raise _not_finite(gradient, state.spec)
        return accumulated

    def _put_back(self, accumulated: Accumulated) -> None:
        """What the pass took along returns to the vector: with ``rollback=False`` it is nowhere
        else."""
        if accumulated.taking is not None and accumulated.taking.taken is not None:
            self.kernels.restore(accumulated.vector, accumulated.taking.taken)

    def send_found(
        self,
        state: TensorState,
        selector: Selector,
        found: Found,
        vector: np.ndarray,
        world_size: int,
        selected_in: str,
    ) -> Outgoing:
        """Send what was selected of a tensor, and keep back the rest.

        vector : what was accumulated; found : of it alone, chosen from the vector that
            ``selected_in`` names
        """
        codec, began_s = self.codec(state.steps), self.spans.now()
        if not selector.has_shared_indices:
            found = bounded(
                found,
                self.configuration.most_entries(state.spec, world_size, state.steps),
                vector,
                self.kernels,
            )
        state.note(found.threshold, found.memo, selected_in)
        if self.exchange.settles_later:
            if found.is_one_pass:
                self.kernels.restore(vector, found.selection)
            return Outgoing(None, None, found.selection.count, self._norm(vector), found, vector)
        sent = codec.complete(found.selection, vector)
        frame = codec.encode(sent, self.kernels)
        is_exact = codec.is_exact and not selector.changes_values
        is_taken = found.is_one_pass and is_exact and sent is found.selection
        if found.is_one_pass and not is_taken:
            self.kernels.restore(vector, found.selection)
        if not codec.is_exact:
            sent = codec.decode(frame, self.kernels)
        observed = (
            self._observe(state, vector, sent, is_taken) if self.configuration.telemetry else None
        )
        state.memory.update(sent, is_exact, self.kernels, is_taken=is_taken)
        self.spans.tell("encode", state.spec.key, began_s)
        return Outgoing(frame, None, sent.count, self._norm(vector), found, observed=observed)

    def _observe(
        self, state: TensorState, vector: np.ndarray, sent: Selection, is_taken: bool
    ) -> Observed:
        """Compare what is sent with what there was; before the memory keeps the rest."""
        there = _squared(vector)
        if is_taken:  # the vector has zeros there
            kept, there = there, there + _squared(sent.values)
        else:
            left = vector[sent.indices]
            kept = there - _squared(left) + _squared(left - sent.values)
        return Observed(max(kept, 0.0), there, state.waited(sent.indices))

    def _find(
        self,
        source: Source,
        selector: Selector,
        aim: Aim | None,
        accumulated: Accumulated,
        gradient: np.ndarray,
        rank: int,
    ) -> Found:
        """The selection: from what the pass took along, or else from the whole vector."""
        vector, taking = accumulated.vector, accumulated.taking
        context = self.context(source, selector, accumulated.moments, rank, gradient)
        if aim is None or taking is None:
            return selector.find(vector, context)
        taken = taking.taken
        if taken is not None:
            cut = selector.cut(taken, aim, context)
            if cut is not None:
                selection, threshold = taken, aim.threshold
                if cut.count < taken.count:
                    selection, threshold = self.kernels.trim(taken, cut.count, vector)
                return Found(selection, threshold, memo=cut.memo, is_one_pass=True)
            self.kernels.restore(vector, taken)
        miss = Miss(aim, taken.count if taken is not None else None)
        return selector.find(vector, dataclasses.replace(context, miss=miss))

    def _norm(self, x: np.ndarray) -> float:
        return float(np.linalg.norm(x)) if self.configuration.telemetry else 0.0

    def _send_whole(
        self, state: TensorState, gradient: np.ndarray, world_size: int, dense: bool
    ) -> Outgoing:
        """What goes to where it is summed; on a dense step, with what this rank keeps back of its
        part."""
        if not self.kernels.moments(gradient).is_finite:
            raise _not_finite(gradient, state.spec)
        whole = gradient.copy()
        if not dense:
            return Outgoing(None, None, 0, 0.0, None, whole)
        state.memory.step = state.steps
        state.memory.compensate(gradient[state.part], self.kernels, world_size)
        whole[state.part] = state.memory.take_all()
        state.note_dense()
        return Outgoing(None, whole, state.spec.numel, 0.0, None)

    def settle(
        self, state: TensorState, left: Selection | None, returned: Selection | None, memo: Any
    ) -> None:
        """After an exchange that settles later: keep back what did not leave.

        left : of this rank's own entries, with the values that were accumulated (or the selector's,
            where it changes them)
        """
        if left is not None:
            state.memory.update(left, not self.selector(state.steps).changes_values, self.kernels)
        state.note_exchange(returned, memo)

    def selector(self, steps: int) -> Selector:
        """The selector, at the density of a step."""
        selector: Selector = self.configuration.selector
        density = self.configuration.density(steps)
        return selector if density is None else selector.at_density(density)

    def codec(self, steps: int) -> Codec:
        """The codec, at the density of a step."""
        codec: Codec = self.configuration.codec
        density = self.configuration.density(steps)
        return codec if density is None else codec.at_density(density)

    def context(
        self,
        source: Source,
        selector: Selector,
        moments: Moments | None,
        rank: int,
        gradient: np.ndarray | None = None,
    ) -> Context:
        """What the selector may use besides the vector."""

        def draw() -> np.random.Generator:
            return generator(
                getattr(selector, "seed", 0),
                source.spec.key,
                source.steps,
                None if selector.has_shared_indices else rank,
            )

        return Context(
            kernels=self.kernels,
            moments=moments,
            warm=source.threshold,
            memo=source.memo,
            rng=draw if selector.needs_rng else None,
            gradient=gradient,
            spec=source.spec,
        )

    def receive(
        self, spec: TensorSpec, parts: Iterable[Part], factor: float, out: np.ndarray, steps: int
    ) -> None:
        """The other half: out = factor * (sum of the parts), in the order given, which is the same
        on all ranks.

        parts : the range of the tensor that each is of, and an encoded selection or one as it is
        out : flat, of the accumulator's dtype; untouched if a part is not good
        steps : completed steps of the tensor, as when they were sent
        """
        codec, arrived, began_s = self.codec(steps), [], self.spans.now()
        for place, sent in parts:
            selection = sent if isinstance(sent, Selection) else codec.decode(sent, self.kernels)
            if selection.numel != place.stop - place.start or selection.values.dtype != out.dtype:
                raise CorruptPayload(
                    f"tensor {spec.key!r} has {place.stop - place.start} entries of {out.dtype}; a "
                    "payload for it is for "
                    f"{selection.numel} of {selection.values.dtype}"
                )
            indices = (
                selection.indices + np.uint32(place.start) if place.start else selection.indices
            )
            values = (
                selection.values if factor == 1.0 else selection.values * out.dtype.type(factor)
            )
            arrived.append(Selection(indices, values, spec.numel))
        self.kernels.assemble(out, arrived)
        self.spans.tell("decode", spec.key, began_s)


def _squared(x: np.ndarray) -> float:
    return float(np.linalg.norm(x)) ** 2


def _not_finite(gradient: np.ndarray, spec: TensorSpec) -> NonFiniteGradient:
    bad = int(np.count_nonzero(~np.isfinite(gradient)))
    what = f"{bad} of {gradient.size} entries of its gradient are NaN or Inf"
    return NonFiniteGradient(
        f"tensor {spec.key!r}: "
        f"{what if bad else 'gradient + residual leaves the range of ' + str(gradient.dtype)}; "
        "look for the step's loss, lower the learning rate, or clip gradients before they are "
        "compressed"
    )
