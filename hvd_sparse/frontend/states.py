"""Saves and loads a compressor's state, and computes its size."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from hvd_sparse.errors import RankMismatch
from hvd_sparse.kernels import reference
from hvd_sparse.memories.contract import DoubleBuffer
from hvd_sparse.state.state_check import STATE_VERSION, differences_of
from hvd_sparse.step.buckets import expected_bytes
from hvd_sparse.step.step import Step
from hvd_sparse.types import Report, Selection, Settings, State, TensorSpec
from hvd_sparse.version import __version__
from hvd_sparse.wire.message import overhead_bytes

SAMPLE = 64
"""Number of entries of a sample state, whose bytes are scaled to each tensor's entries."""


def footprint(step: Step, world_size: int, settings_of: Callable[[int], Settings | None]) -> Report:
    """Return the sizes that ``Compressor.footprint`` describes, computed from shapes alone.
    ``settings_of`` returns the optimizer's settings for the memory of the tensor at a position, or
    None if the compressor has no optimizer."""
    configuration, gathered = step.configuration, None
    specs, compressed = step.specs, sorted(step.compressed)
    sent = [specs[position] for position in compressed]
    # An optimizer that was given to the compressor updates the other tensors by itself.
    is_alone = configuration.memory.finishes and step.settings_of is None
    kept = range(len(specs)) if is_alone else compressed
    if configuration.schedule is not None:
        nbytes = sum(expected_bytes(configuration, s) + overhead_bytes(1) for s in sent)
        gathered = world_size * int(nbytes)
    return {
        "state_bytes": sum(
            _state_bytes(step, specs[position], world_size, settings_of(position))
            for position in kept
        ),
        "gathered_bytes": gathered,
    }


def _state_bytes(step: Step, spec: TensorSpec, world_size: int, settings: Settings | None) -> int:
    """Return the bytes of a tensor's state between two steps: those that the state of ``SAMPLE``
    entries has after one step, because memories allocate some vectors when they need them."""
    configuration = step.configuration
    shape = (1,) * (len(spec.shape) - 1) + (SAMPLE,)
    memory = configuration.memory.create(
        TensorSpec(spec.key, shape, spec.dtype), rollback=configuration.rollback
    )
    is_sparse = configuration.is_sparse(spec.shape, spec.numel)
    is_dense = not is_sparse or configuration.goes_dense(
        spec, 0, world_size, step.exchange, step.placement
    )
    memory.density = 1.0 if is_dense else configuration.density(0, spec)
    zeros = np.zeros(SAMPLE, spec.accumulator)
    if settings is not None:
        memory.tune(**{**settings, "rate": 1.0, "parameter": zeros})
    memory.compensate(zeros, reference)
    memory.update(Selection.empty(SAMPLE, zeros.dtype), is_exact=True)
    if configuration.memory.finishes:
        memory.finish(zeros, zeros, is_sparse, reference)
    memory.commit()
    held = sum(
        thing.nbytes
        for thing in vars(memory).values()
        if isinstance(thing, (DoubleBuffer, np.ndarray)) and thing is not zeros
    )
    return int(held) * spec.numel // SAMPLE


def saved_state(step: Step, rank: int, world_size: int, due: Collection[int] = ()) -> Report:
    """Return the state that ``Compressor.state_dict`` describes. The last step of the tensors
    ``due`` is left out, and may still be committed or rolled back."""
    rule = step.configuration.rule
    measured = rule.table if rule is not None and rule.is_measured else {}
    tensors = {}
    for position, state in sorted(step.transactions.settle_all(due).items()):
        spec = step.specs[position]
        numbers = state.memory.numbers()
        tensors[spec.key] = {
            "steps": state.steps,
            "threshold": None if state.threshold is None else float(state.threshold),
            "memo": state.memo,
            "is_sparse": position in step.compressed,
            "selected_in": state.selected_in,
            "exchange_memo": state.exchange_memo,
            **({"density": measured[spec.key]} if spec.key in measured else {}),
            **({"numbers": numbers} if numbers else {}),
            "arrays": {name: array.copy() for name, array in state.memory.arrays().items()},
        }
    return {
        "version": STATE_VERSION,
        "library": __version__,
        "config": step.configuration.describe(),
        "model": {spec.key: f"{list(spec.shape)} {spec.dtype}" for spec in step.specs},
        "rank": rank,
        "world_size": world_size,
        "reduction": step.reduction,
        **({"references": step.references.copy()} if step.references else {}),
        "tensors": tensors,
    }


def load_state(step: Step, place: tuple[int, int], state: State, *, strict: bool) -> None:
    """Load a result of ``saved_state``, or raise RankMismatch, which lists the differences.
    ``place`` is this rank, and the number of ranks. Without ``strict``, only tensors that both the
    state and the compressor have are loaded; other tensors are no difference."""
    kept = {spec.key: step.transactions.kept_of(spec) for spec in step.specs}
    compare = partial(differences_of, state, step.configuration, step.specs, place, kept)
    if differences := compare(strict=strict):
        way_out = "train on without the state, which loses its residuals"
        if strict and not compare(strict=False):
            way_out = "load the tensors that both have, with strict=False"
        raise RankMismatch(
            f"this state does not fit this compressor: {'; '.join(differences)}. Make the "
            f"compressor as in the run that saved the state, or {way_out}"
        )
    step.transactions.reset()
    step.applied.clear()
    step.reduction = state["reduction"]
    references = state.get("references", ())
    if len(references) == len(step.references):  # the optimizer has as many parameter groups
        step.references[:] = references  # in place, because the frontend's ``Rates`` reads them
    for position, spec in enumerate(step.specs):
        saved = state["tensors"].get(spec.key)
        if saved is None:
            continue
        tensor = step.transactions.state_of(position)
        tensor.memory.load({name: np.asarray(array) for name, array in saved["arrays"].items()})
        tensor.memory.recall(saved.get("numbers", {}))
        tensor.restore(saved)
