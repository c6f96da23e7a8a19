"""Group selection: one selection from the vectors (residual + gradient) of several tensors.

Each tensor keeps its own residual, encoded selection (frame) and number of steps. Usually the
vectors need not be joined, because the kernel that adds a gradient to its residual also extracts
entries: those that reach the group's aim, which is its previous threshold or slightly lower. The
selection is made from these entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.arrays import aligned_empty
from hvd_sparse.kernels.contract import Aim, Moments
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors._aim import Miss
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.step.pipeline import Pipeline, cut_down, draws
from hvd_sparse.step.records import TensorStep
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import Selection, TensorSpec


def send_merged(pipeline: Pipeline, tickets: Sequence[TensorStep]) -> None:
    """Make one selection from the vectors (residual + gradient) of several tensors, and encode each
    tensor's share of it. All vectors have one dtype. ``tickets`` has the record of each tensor's
    step, in the same order on all ranks.
    """
    states = [ticket.state for ticket in tickets]
    passes = [cast(Accumulated, ticket.accumulated) for ticket in tickets]
    vectors = [each.vector for each in passes]
    lists = [each.taken for each in passes]
    for each in passes:  # before anything can fail, so that no entry is lost
        each.put_back()
    specs = [state.spec for state in states]
    numel = sum(spec.numel for spec in specs)
    spec = TensorSpec(name_of(specs), (numel,), specs[0].dtype)
    steps = max(state.steps for state in states)
    # Start from the last threshold if the last selection was from exactly these tensors.
    is_warm = all(state.selected_in == spec.key for state in states)
    warm, memo = (states[0].threshold, states[0].memo) if is_warm else (None, None)
    began_s = pipeline.spans.now()
    selector = _selector_of_all(pipeline.configuration, spec, steps, states)
    moments = _moments_of_all([each.moments for each in passes])
    rng = draws(spec.key, steps, selector, pipeline.rank) if selector.needs_rng else None
    context = Context(pipeline.kernels, moments, warm, memo, rng, spec=spec)
    aim = selector.aim(spec.numel, warm, memo)
    # The extracted entries can be used only if all of them were extracted at this threshold.
    if aim and any(each.aim is None or each.aim.threshold != aim.threshold for each in tickets):
        aim = None
    ends = list(accumulate([vector.size for vector in vectors]))
    places = [slice(end - vector.size, end) for end, vector in zip(ends, vectors)]
    found, miss = _cut_of_all(places, lists, selector, aim, context) if aim else (None, None)
    if found is None:
        joined = np.concatenate(vectors, out=aligned_empty(spec.numel, vectors[0].dtype))
        found = selector.find(joined, context._replace(miss=miss))
    pipeline.spans.tell("select", (spec.key,), began_s)
    sent = []
    for ticket, state, vector, place in zip(tickets, states, vectors, places):
        share = found._replace(selection=found.selection.region(place))
        # The tensor's own parts, because the receiver decodes with these.
        sent.append(pipeline.send_found(state, ticket.parts, share, vector, spec.key))
    for ticket, outgoing in zip(tickets, sent):  # a second loop: errors above change no ticket
        ticket.outgoing, ticket.accumulated = outgoing, None


def _selector_of_all(
    configuration: Configuration, spec: TensorSpec, steps: int, states: Sequence[TensorState]
) -> Selector:
    """Return the group's selector, whose k (entries to select) is the sum of the tensors' k."""
    if configuration.rule is None and not configuration.follows_rate:
        return configuration.at_step(steps).selector
    asked = [
        (configuration.density(steps, state.spec, state.pace) or 0.0) * state.spec.numel
        for state in states
    ]
    return configuration.parts_at(min(1.0, sum(asked) / spec.numel)).selector


def name_of(specs: Sequence[TensorSpec]) -> str:
    if len(specs) == 1:
        return specs[0].key
    text = "\n".join(f"{spec.key} {spec.numel}" for spec in specs)
    return f"group of {len(specs)}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _cut_of_all(
    places: Sequence[slice],
    lists: Sequence[Selection | None],
    selector: Selector,
    aim: Aim,
    context: Context,
) -> tuple[Found | None, Miss]:
    """Return a selection from the entries that were extracted while the gradients were added to the
    residuals, or None if the selector must search the whole vectors instead, and what this search
    needs to know."""
    regions = [(place, taken) for place, taken in zip(places, lists) if taken is not None]
    count, has_all = sum(taken.count for _, taken in regions), len(regions) == len(lists)
    if count > aim.capacity:
        return None, Miss(aim, None)
    miss = Miss(aim, count if has_all else None, has_all)
    if not has_all:
        return None, miss
    joined = Selection.joined(regions, places[-1].stop)
    cut = selector.cut(joined, aim, context)
    if cut is None:
        return None, miss
    found = cut_down(selector, joined, cut, aim, context.kernels, None)
    return found._replace(is_one_pass=False, is_taken=False), miss  # the entries were added back


def _moments_of_all(parts: Sequence[Moments | None]) -> Moments | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):  # a pass with an aim does not compute moments
        return None
    return Moments(
        sum(part.abs_sum for part in known),
        max(part.abs_max for part in known),
        sum(part.nonzeros for part in known),
        sum(part.numel for part in known),
    )
