"""One selection from several tensors: what was accumulated of a group is selected from as one
vector.

Only the choice is common.  Residuals, messages and steps stay each tensor's own, so that other
groups lose nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.aligned import aligned_empty
from hvd_sparse.core.kernels.contract import Moments
from hvd_sparse.core.step.pipeline import Pipeline
from hvd_sparse.core.step.tensor_state import Source, TensorState
from hvd_sparse.exchanges._entries import region_of
from hvd_sparse.exchanges.context import Outgoing
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import TensorSpec


def send_merged(
    pipeline: Pipeline, members: Sequence[tuple[TensorState, Outgoing]], rank: int, world_size: int
) -> list[Outgoing]:
    """Return what each tensor sends of the one selection, in the order in which they are joined.

    members : states, and what was accumulated of each; of one accumulator, the same on all ranks
    """
    if not members:
        return []
    vectors, moments = [], []
    for _, waiting in members:
        assert waiting.accumulated is not None and waiting.moments is not None
        vectors.append(waiting.accumulated)
        moments.append(waiting.moments)
    source = joint_source([state for state, _ in members])
    began_s = pipeline.spans.now()
    joined = np.concatenate(vectors, out=aligned_empty(source.spec.numel, vectors[0].dtype))
    selector = _selector_of_all(pipeline.configuration, source, [state for state, _ in members])
    context = pipeline.context(source, selector, _moments_of_all(moments), rank)
    found = selector.find(joined, context)
    pipeline.spans.tell("select", source.spec.key, began_s)
    sent, start = [], 0
    for (state, waiting), vector in zip(members, vectors):
        place = slice(start, start + vector.size)
        share = found._replace(selection=region_of(found.selection, place))
        # Each tensor's own: the receiver decodes it by these.
        parts = pipeline.configuration.at_step(state.steps, state.spec)
        outgoing = pipeline.send_found(state, parts, share, vector, world_size, source.spec.key)
        outgoing.norm = waiting.norm  # as the carrier said, before anything left
        sent.append(outgoing)
        start += vector.size
    return sent


def _selector_of_all(
    configuration: Configuration, source: Source, states: Sequence[TensorState]
) -> Selector:
    """Return the selector of as many entries as the tensors' own densities come to together."""
    if configuration.rule is None:
        return configuration.at_step(source.steps).selector
    asked = [
        (configuration.density(source.steps, state.spec) or 0.0) * state.spec.numel
        for state in states
    ]
    return configuration.parts_at(min(1.0, sum(asked) / source.spec.numel)).selector


def joint_source(states: Sequence[TensorState]) -> Source:
    """The tensors as one vector.  It starts where its last selection ended, if that was from just
    these tensors."""
    first = states[0]
    spec = TensorSpec(
        name_of([state.spec for state in states]),
        (sum(s.spec.numel for s in states),),
        first.spec.dtype,
    )
    is_warm = all(state.selected_in == spec.key for state in states)
    start = (first.threshold, first.memo) if is_warm else (None, None)
    return Source(spec, max(state.steps for state in states), *start)


def name_of(specs: Sequence[TensorSpec]) -> str:
    """Return the name of tensors as one vector: a lone one's key, else a name of their own."""
    if len(specs) == 1:
        return specs[0].key
    text = "\n".join(f"{spec.key} {spec.numel}" for spec in specs)
    return f"group of {len(specs)}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _moments_of_all(parts: Sequence[Moments]) -> Moments:
    return Moments(
        sum(part.abs_sum for part in parts),
        max(part.abs_max for part in parts),
        sum(part.nonzeros for part in parts),
        sum(part.numel for part in parts),
    )
