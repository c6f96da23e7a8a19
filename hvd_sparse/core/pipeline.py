"""The walk of one tensor through one step, in its only place:

memory.compensate -> selector.find -> codec.encode -> memory.update   |   codec.decode -> sum in rank order
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import CorruptPayload, NonFiniteGradient
from ..types import Selection, TensorSpec
from .codecs._base import Codec
from .configuration import Configuration
from .kernels import Aim, Kernels, Moments
from .memories._base import Accumulated
from .randomness import generator
from .selectors._aim import Miss
from .selectors._base import Context, Found, Selector


class TensorState:
    """What is kept of one tensor between its steps: memory, what its selector was left with, completed steps.

    A step writes new versions; ``commit`` makes them the state, ``roll_back`` drops them.
    """

    def __init__(self, spec: TensorSpec, configuration: Configuration) -> None:
        self.spec = spec
        self.memory: Any = configuration.memory.create(spec, rollback=configuration.rollback)
        self.threshold: float | None = None
        self.memo: Any = None
        self.steps = 0
        self._new: tuple[float | None, Any] = (None, None)

    def note(self, threshold: float | None, memo: Any) -> None:
        """What the selector's next step is to start from, once this one is good."""
        self._new = (threshold, memo)

    def restore(self, steps: int, threshold: float | None, memo: Any) -> None:
        """Go on from a checkpoint."""
        self.steps, self.threshold, self.memo = steps, threshold, memo

    def commit(self) -> None:
        self.memory.commit()
        self.threshold, self.memo = self._new
        self.steps += 1

    def roll_back(self) -> None:
        self.memory.roll_back()
        self._new = (self.threshold, self.memo)


@dataclass(frozen=True)
class Outgoing:
    """What one tensor sends in one step: a frame, or everything.

    Attributes
    ----------
    frame : uint8, the encoded selection; None on a dense step
    dense : all that was accumulated, flat; None on a sparse step
    entries : how many entries are sent
    norm : L2 norm of the residual, 0 unless telemetry is on
    found : how the selection was come by; None on a dense step
    """

    frame: np.ndarray | None
    dense: np.ndarray | None
    entries: int
    norm: float
    found: Found | None


class Pipeline:
    """The five parts, joined."""

    def __init__(self, configuration: Configuration, kernels: Kernels | ModuleType) -> None:
        self.configuration = configuration
        self.kernels = kernels

    def send(self, state: TensorState, gradient: np.ndarray, rank: int, world_size: int, *, dense: bool) -> Outgoing:
        """This rank's half: take the gradient in, give out what is sent.

        gradient : flat, C-contiguous, of the accumulator's dtype; read once, not kept
        """
        selector = None if dense else self._selector(state)
        aim = selector.aim(state.spec.numel, state.threshold, state.memo) if selector is not None else None
        accumulated = self._accumulate(state, gradient, world_size, aim)
        if selector is None:
            state.note(None, state.memo)
            return Outgoing(None, state.memory.take_all(), state.spec.numel, 0.0, None)
        try:
            return self._send_selection(state, selector, aim, accumulated, gradient, rank)
        except Exception:
            self._put_back(accumulated)
            raise

    def send_nothing(self, spec: TensorSpec, *, dense: bool) -> Outgoing:
        """What stands in for a gradient that is not finite: the carrier says so, and the step leaves no trace."""
        if dense:
            return Outgoing(None, np.zeros(spec.numel, spec.accumulator), 0, 0.0, None)
        nothing = Found(Selection.empty(spec.numel, spec.accumulator), None)
        return Outgoing(self.configuration.codec.encode(nothing.selection), None, 0, 0.0, nothing)

    def _accumulate(self, state: TensorState, gradient: np.ndarray, world_size: int, aim: Aim | None) -> Accumulated:
        configuration, kernels = self.configuration, self.kernels
        # Other sums than the last one, which skips what is not finite, would spoil the only buffer there is.
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
        """What the pass took along returns to the vector: with ``rollback=False`` it is nowhere else."""
        if accumulated.taking is not None and accumulated.taking.taken is not None:
            self.kernels.restore(accumulated.vector, accumulated.taking.taken)

    def _send_selection(
        self,
        state: TensorState,
        selector: Selector,
        aim: Aim | None,
        accumulated: Accumulated,
        gradient: np.ndarray,
        rank: int,
    ) -> Outgoing:
        codec = self._codec(state.steps)
        found = self._find(state, selector, aim, accumulated, gradient, rank)
        sent = codec.complete(found.selection, accumulated.vector)
        frame = codec.encode(sent)
        is_exact = codec.is_exact and not selector.changes_values
        is_taken = found.is_one_pass and is_exact and sent is found.selection
        if found.is_one_pass and not is_taken:
            self.kernels.restore(accumulated.vector, found.selection)
        if not codec.is_exact:
            sent = codec.decode(frame)
        state.memory.update(sent, is_exact, self.kernels, is_taken=is_taken)
        state.note(found.threshold, found.memo)
        norm = float(np.linalg.norm(accumulated.vector)) if self.configuration.telemetry else 0.0
        return Outgoing(frame, None, sent.count, norm, found)

    def _find(
        self,
        state: TensorState,
        selector: Selector,
        aim: Aim | None,
        accumulated: Accumulated,
        gradient: np.ndarray,
        rank: int,
    ) -> Found:
        """The selection: from what the pass took along, or else from the whole vector."""
        vector, taking = accumulated.vector, accumulated.taking
        context = self._context(state, selector, gradient, accumulated.moments, rank)
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

    def _selector(self, state: TensorState) -> Selector:
        selector: Selector = self.configuration.selector
        density = self.configuration.density(state.steps)
        return selector if density is None else selector.at_density(density)

    def _codec(self, steps: int) -> Codec:
        codec: Codec = self.configuration.codec
        density = self.configuration.density(steps)
        return codec if density is None else codec.at_density(density)

    def _context(
        self, state: TensorState, selector: Selector, gradient: np.ndarray, moments: Moments | None, rank: int
    ) -> Context:
        def draw() -> np.random.Generator:
            return generator(
                getattr(selector, "seed", 0),
                state.spec.key,
                state.steps,
                None if selector.has_shared_indices else rank,
            )

        return Context(
            kernels=self.kernels,
            moments=moments,
            warm=state.threshold,
            memo=state.memo,
            rng=draw if selector.needs_rng else None,
            gradient=gradient,
            spec=state.spec,
        )

    def receive(
        self, spec: TensorSpec, frames: Iterable[np.ndarray], factor: float, out: np.ndarray, steps: int
    ) -> None:
        """The other half: out = factor * (sum of all ranks' selections), in the order given, which is rank order.

        out : flat, of the accumulator's dtype; untouched if a frame is not good
        steps : completed steps of the tensor, as when they were sent
        """
        codec, parts = self._codec(steps), []
        for frame in frames:
            selection = codec.decode(frame)
            if selection.numel != spec.numel or selection.values.dtype != out.dtype:
                raise CorruptPayload(
                    f"tensor {spec.key!r} has {spec.numel} entries of {out.dtype}; a payload for it is for "
                    f"{selection.numel} of {selection.values.dtype}"
                )
            values = selection.values if factor == 1.0 else selection.values * out.dtype.type(factor)
            parts.append(Selection(selection.indices, values, spec.numel))
        self.kernels.assemble(out, parts)


def _not_finite(gradient: np.ndarray, spec: TensorSpec) -> NonFiniteGradient:
    bad = int(np.count_nonzero(~np.isfinite(gradient)))
    what = f"{bad} of {gradient.size} entries of its gradient are NaN or Inf"
    return NonFiniteGradient(
        f"tensor {spec.key!r}: {what if bad else 'gradient + residual leaves the range of ' + str(gradient.dtype)}; "
        "look for the step's loss, lower the learning rate, or clip gradients before they are compressed"
    )
