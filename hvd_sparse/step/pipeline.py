"""The pipeline: the order in which memory, selector and codec process one tensor in one step.

    memory.compensate -> selector.find -> codec.encode -> memory.update

With numba, one compiled call usually does this for all tensors of a bucket (``step.rows``), with
the same bits. The pipeline defines these bits, and processes all other tensors.

If the exchange determines which entries leave the residual (``settles_later``), memory.update runs
after the exchange. If the exchange sums gradients before the selection (``sums_first``), the
pipeline starts with the summed gradient. ``step.receiver`` decodes the frames (encoded selections)
of all ranks, and sums them in rank order. The pass over a tensor is the kernel call that adds the
gradient to the residual. If the selector gives an aim, a threshold that is known before the pass,
the same call extracts the entries that reach this threshold.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.configuration import Configuration, StepParts
from hvd_sparse.errors import InvalidOption, NonFiniteGradient
from hvd_sparse.exchanges.context import Arrival, Outgoing
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.kernels.arrays import as_array
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors._aim import Cut, Miss
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.step.records import TensorStep
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.tracing import Spans
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.wire.message import message_bytes

GROUP_SHARE = 8
"""If one selection is made over a group, a pass may extract numel / ``GROUP_SHARE`` entries of a
tensor, or its aim's capacity if that is larger."""


class Pipeline:
    """Processes one tensor in one step: the memory adds the gradient to the residual, the selector
    chooses entries, the codec encodes them, and the memory keeps the others. ``Step.meet`` sets
    ``rank`` and ``world_size``."""

    rank, world_size = 0, 1

    def __init__(self, configuration: Configuration, kernels: Kernels) -> None:
        self.configuration = configuration
        self.kernels = kernels
        self.spans = Spans()
        self.observes = configuration.telemetry is True
        """Whether telemetry measures norms and staleness. The value may change between steps."""
        self.looks_first = not configuration.rollback and not configuration.memory.adds_gradient
        """Whether to check gradients before the memory adds them. Without ``rollback``, NaN would
        spoil the memory's only buffer."""
        self.use(configuration.exchange)

    def use(self, exchange: Exchange) -> None:
        """Set the exchange of the next steps. Called only between steps."""
        self.exchange = exchange
        self.selects_late = not exchange.settles_later and not exchange.sums_first
        """Whether selection may wait until the bucket's message is made. The carrier
        (``wire.carrier``), which is sent before, then lacks the flag for NaN and Inf."""

    def send(
        self,
        state: TensorState,
        gradient: np.ndarray,
        *,
        dense: bool,
        is_summed: bool = False,
        parts: StepParts | None = None,
        accumulated: Accumulated | None = None,
    ) -> Outgoing:
        """Process a tensor's flat gradient, and return this rank's contribution to the step.

        is_summed : ``gradient`` is already the ranks' sum, for this rank's part of the tensor
        dense : send the whole accumulated vector, not a selection
        parts : selector and codec of this step; None to take them from the configuration
        accumulated : residual + gradient, if ``begin`` has already launched the kernel that adds
            them; otherwise None
        """
        if self.exchange.sums_first and not is_summed:
            return self._send_whole(state, gradient, dense=dense)
        if dense:
            self._accumulate(state, gradient, None)
            state.note_dense()
            return Outgoing(dense=state.memory.take_all())
        if parts is None:
            parts = self.configuration.at_step(state.steps, state.spec, state.pace)
        spans, selector, spec, steps = self.spans, parts.selector, state.spec, state.steps
        began_s = spans.now() if spans.is_heard else 0.0
        if not self.exchange.selects_on(self.rank, self.world_size, steps, selector):
            vector = self._accumulate(state, gradient, None).vector
            return Outgoing(accumulated=vector, release=state.memory.release)
        # Computed before the pass, so that the pass itself can extract the entries.
        warm, memo = state.start
        aim = selector.aim(state.part.stop - state.part.start, warm, memo)
        accumulated = self._accumulate(state, gradient, aim, accumulated)
        # The surplus consists of the entries that the pass extracted, but the selector did not
        # select. On a device, it may be added back late, by the kernel launch that writes the
        # bucket's sums: no code reads the vector before, and a failed step discards it (see
        # ``Configuration.why_staged``).
        holds = state.is_on_device and parts.sends_accumulated
        try:
            added = gradient if accumulated.added is None else accumulated.added
            rng = draws(spec.key, steps, selector, self.rank) if selector.needs_rng else None
            context = Context(
                self.kernels, accumulated.moments, warm, memo, rng, added, spec,
                kept=accumulated.vector,
            )  # fmt: skip
            found = _find(selector, aim, accumulated, context, holds=holds)
            if began_s:
                spans.tell("select", (spec.key,), began_s)
            sent = self.send_found(state, parts, found, accumulated.vector, spec.key)
            if holds:
                sent.surplus = _surplus(accumulated, found)
            return sent
        except Exception:
            accumulated.put_back()
            raise

    def begin(self, ticket: TensorStep, gradient: np.ndarray) -> None:
        """Launch, on a tensor's device, the kernel that adds the gradient to the residual. Return
        before the kernel has ended; ``send`` uses its result later."""
        state = ticket.state
        aim = ticket.parts.selector.aim(state.spec.numel, *state.start)
        ticket.gradient = gradient
        ticket.accumulated = state.memory.compensate(gradient, self.kernels, aim)

    def accumulate_for_group(self, ticket: TensorStep, gradient: np.ndarray) -> None:
        """Add a gradient to the tensor's residual, for a tensor that shares one selection with its
        group. ``step.group_selection`` later selects and encodes entries. The aim, at which the
        pass also extracts entries, is the group's previous threshold, or a slightly lower one."""
        state = ticket.state
        # No aim if the last selection was not over a group; and without ``rollback``, because an
        # error could then lose the extracted entries.
        if self.configuration.rollback and state.selected_in != state.spec.key:
            numel = state.spec.numel
            aim = ticket.parts.selector.aim(numel, state.threshold, state.memo)
            # The tensor may hold far more of the group's largest entries than its share by size.
            ticket.aim = aim and aim._replace(capacity=max(aim.capacity, numel // GROUP_SHARE))
        ticket.accumulated = self._accumulate(state, gradient, ticket.aim)

    def _send_whole(self, state: TensorState, gradient: np.ndarray, *, dense: bool) -> Outgoing:
        """Return the whole gradient, for exchanges that sum gradients before the selection. This
        rank keeps the residual of only a part of the tensor. On a dense step, it adds this residual
        to the same part of the gradient."""
        if not self.kernels.moments(gradient).is_finite:
            raise _not_finite(gradient, state.spec)
        # A copy, because the program may write to the gradient while Horovod sums.
        whole = gradient.copy()
        if not dense:
            return Outgoing(accumulated=whole)
        self._accumulate(state, gradient[state.part], None)
        whole[state.part] = state.memory.take_all()
        state.note_dense()
        return Outgoing(dense=whole)

    def send_nothing(self, state: TensorState, selector: Selector, *, dense: bool) -> Outgoing:
        """Return a contribution without entries, for a gradient with NaN or Inf. The other ranks
        learn of the NaN or Inf from a flag in the carrier or, if the carrier was sent earlier, from
        the missing frame (the encoded entries)."""
        spec, exchange = state.spec, self.exchange
        if not dense and self.selects_late:
            return Outgoing()
        zeros = np.zeros(spec.numel, spec.accumulator)
        if dense:
            return Outgoing(dense=zeros)
        nothing = Found(Selection.empty(spec.numel, spec.accumulator), None)
        if exchange.shares_indices and selector.has_shared_indices:
            # The allreduce of values at shared indices needs equally many values from all ranks.
            warm, memo = state.start
            rng = draws(spec.key, state.steps, selector, 0) if selector.needs_rng else None
            context = Context(self.kernels, None, warm, memo, rng, spec=spec)
            nothing = selector.find(zeros, context)
        return Outgoing(found=nothing, accumulated=zeros)

    def _accumulate(
        self,
        state: TensorState,
        gradient: np.ndarray,
        aim: Aim | None,
        accumulated: Accumulated | None = None,
    ) -> Accumulated:
        memory = state.memory
        if self.looks_first and not self.kernels.moments(gradient).is_finite:
            raise _not_finite(gradient, state.spec)
        memory.step, memory.world_size = state.steps, self.world_size
        if accumulated is None:
            accumulated = memory.compensate(gradient, self.kernels, aim)
        taking, moments = accumulated.taking, accumulated.moments
        is_finite = moments is None or moments.is_finite
        if not is_finite or (taking is not None and taking.nonfinite):
            accumulated.put_back()
            raise _not_finite(gradient, state.spec)
        return accumulated

    def send_found(
        self,
        state: TensorState,
        parts: StepParts,
        found: Found,
        vector: np.ndarray,
        selected_in: str,
    ) -> Outgoing:
        """Encode the selected entries, keep the other entries in the memory, and return this rank's
        contribution to the step. ``selected_in`` names the tensor or the group of the selection."""
        selector, codec, spans = parts.selector, parts.codec, self.spans
        began_s = spans.now() if spans.is_heard else 0.0
        if self.configuration.max_gathered_bytes is not None and not selector.has_shared_indices:
            most = self._most_entries(max(1, found.selection.count), vector.size, state.spec, codec)
            found = _bounded(found, most, vector, selector, self.kernels)
        state.note(found.threshold, found.memo, selected_in)
        release = state.memory.release
        sent = found.selection if release is None else release.of(found.selection)
        if self.exchange.settles_later:
            # The exchange determines which entries are removed, so until then the vector keeps all.
            if found.is_taken:
                vector[found.selection.indices] = found.selection.values
            found = found._replace(selection=sent)
            return Outgoing(entries=sent.count, found=found, accumulated=vector, release=release)
        frame = codec.encode(sent, self.kernels)
        is_exact = parts.sends_accumulated and release is None
        is_taken = found.is_taken and is_exact
        if found.is_taken and not is_taken:
            vector[found.selection.indices] = found.selection.values
        # The residual keeps a lossy codec's rounding errors.
        if not parts.is_exact:
            sent = codec.decode(frame, self.kernels)
        observed = None
        if self.observes:  # measured before the memory keeps the rest
            observed = _observe(state, vector, sent, is_taken)
        elif state.departures is not None:
            state.departures.note(state.steps, sent.indices)
        state.memory.update(sent, is_exact, is_taken)
        if began_s:
            spans.tell("encode", (state.spec.key,), began_s)
        return Outgoing(frame, entries=sent.indices.size, found=found, observed=observed)

    def _most_entries(self, wanted: int, numel: int, spec: TensorSpec, codec: Codec) -> int:
        configuration, ranks = self.configuration, self.world_size
        most = configuration.most_entries(wanted, numel, spec, ranks, codec)
        if most == 0:
            least = ranks * message_bytes(codec, 1, numel, spec.accumulator.itemsize)
            raise InvalidOption(
                f"tensor {spec.key!r}: max_gathered_bytes is {configuration.max_gathered_bytes}, "
                f"but the messages of {ranks} ranks with one entry each have {math.ceil(least)} "
                f"bytes with codec {codec.id!r}: raise max_gathered_bytes, use a codec with "
                "smaller messages (codec), or send the tensor uncompressed (min_numel)"
            )
        return most

    def settle(self, ticket: TensorStep, arrival: Arrival) -> None:
        """Update a tensor's memory after an exchange that determines which entries leave the
        residual (``settles_later``)."""
        if arrival.left is not None:
            memory = ticket.state.memory
            is_exact = not ticket.parts.selector.changes_values and memory.release is None
            memory.update(arrival.left, is_exact)
        ticket.state.note_exchange(arrival.returned, arrival.memo)


def draws(key: str, steps: int, selector: Selector, rank: int) -> Callable[[], np.random.Generator]:
    # If all ranks send values at the same indices, all draw the same numbers.
    drawer = None if selector.has_shared_indices else rank
    return partial(generator, getattr(selector, "seed", 0), key, steps, drawer)


def _surplus(accumulated: Accumulated, found: Found) -> tuple[np.ndarray, Selection] | None:
    """Return the accumulated vector and its surplus: entries that were extracted while the gradient
    was added, but that the selector did not select. Return None if there are no such entries."""
    taken = accumulated.taken
    if taken is None or not found.is_taken or found.selection.count == taken.count:
        return None
    return accumulated.vector, taken.without(found.selection)


def _find(
    selector: Selector, aim: Aim | None, accumulated: Accumulated, context: Context, *, holds: bool
) -> Found:
    """Return a selection: from the entries that were extracted while the gradient was added, if
    these suffice, otherwise from the whole vector. Extracted entries that are not selected are
    added back to the vector, unless ``holds`` states that the caller does this later."""
    vector, taking, kernels = accumulated.vector, accumulated.taking, context.kernels
    if aim is None or taking is None:
        return selector.find(vector, context)
    taken = taking.taken
    cut = None if taken is None else selector.cut(taken, aim, context)
    if taken is None or cut is None:
        accumulated.put_back()
        miss = Miss(aim, None if taken is None else taken.count)
        return selector.find(vector, context._replace(miss=miss))
    if not selector.changes_values:
        return cut_down(selector, taken, cut, aim, kernels, None if holds else vector)
    accumulated.put_back()  # the memory keeps the difference to the vector's own values
    return cut_down(selector, taken, cut, aim, kernels, None)._replace(is_taken=False)


def cut_down(
    selector: Selector,
    taken: Selection,
    cut: Cut,
    aim: Aim,
    kernels: Kernels,
    into: np.ndarray | None,
) -> Found:
    """Return the extracted entries that the selector's decision ``cut`` keeps, with the values to
    send. The other extracted entries are added back to the vector ``into``; if ``into`` is None,
    they are left out."""
    selection, threshold = taken, aim.threshold
    if cut.count < taken.indices.size:
        selection, threshold = kernels.trim(taken, cut.count, into)
    return Found(
        selector.as_sent(selection),
        threshold if cut.threshold is None else cut.threshold,
        is_fallback=cut.is_fallback,
        memo=cut.memo,
        is_one_pass=True,
        is_taken=True,
    )


def _bounded(
    found: Found, most: int, vector: np.ndarray, selector: Selector, kernels: Kernels
) -> Found:
    """Limit the selection to ``most`` entries, those of largest accumulated magnitude."""
    chosen = found.selection
    if chosen.count <= most:
        return found
    is_zero = chosen.values == 0  # a zero need not be sent
    if is_zero.any():
        chosen = Selection(chosen.indices[~is_zero], chosen.values[~is_zero], chosen.numel)
    if chosen.count > most and selector.changes_values:
        # Sent magnitudes are often equal: of these, each step would send the lowest indices.
        own = Selection(chosen.indices, vector[chosen.indices], chosen.numel)
        kept = kernels.trim(own, most, None)[0].indices
        values = chosen.values[np.searchsorted(chosen.indices, kept)]
        chosen = Selection(kept, values, chosen.numel)
    elif chosen.count > most:
        chosen, _ = kernels.trim(chosen, most, vector if found.is_taken else None)
    return found._replace(selection=chosen)


def _not_finite(gradient: np.ndarray, spec: TensorSpec) -> NonFiniteGradient:
    bad = int(np.count_nonzero(~np.isfinite(as_array(gradient))))
    what = f"{bad} of {gradient.size} entries of its gradient are NaN or Inf"
    if not bad:
        what = (
            "gradient + residual, or a vector that the memory computes from the gradient, leaves "
            f"the range of {gradient.dtype}"
        )
    error = NonFiniteGradient(
        f"tensor {spec.key!r}: {what}; check the step's loss, lower the learning rate, or clip "
        "gradients before they are compressed"
    )
    error.is_of_gradient = bad > 0
    return error


def _observe(
    state: TensorState, vector: np.ndarray, sent: Selection, is_taken: bool
) -> tuple[float, float, int]:
    """Return what telemetry measures on a sparse step: the squared L2 norm of the entries that are
    not sent, the squared L2 norm of the accumulated vector, and the sum of the sent entries' ages
    in steps. ``is_taken`` states that the vector already has zeros at the sent entries."""
    there = _squared(vector)
    if is_taken:
        kept, there = there, there + _squared(sent.values)
    else:
        left = vector[sent.indices]
        kept = there - _squared(left) + _squared(left - sent.values)
    return max(kept, 0.0), there, state.waited(sent.indices)


def _squared(x: np.ndarray) -> float:
    return float(x.dot(x))


def generator(seed: int, key: str, step: int, rank: int | None = None) -> np.random.Generator:
    """Return a selector's random generator for one step of a tensor. If ``rank`` is None, all ranks
    get the same generator. The numbers do not depend on the order in which hooks run."""
    digest = hashlib.sha256(f"{seed}|{key}".encode()).digest()
    # Philox counts draws in the two lowest words, so numbers overlap only after 2**128 draws.
    counter = [0, 0, step, 0 if rank is None else rank + 1]
    return np.random.Generator(
        np.random.Philox(key=np.frombuffer(digest[:16], np.uint64), counter=counter)
    )
