"""Selection from the entries that the gradient's pass extracted, and the limit on entries per
step."""

from __future__ import annotations

from types import ModuleType
from typing import cast

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels, Taking
from hvd_sparse.kernels.listed import ListedKernels
from hvd_sparse.selectors._aim import Cut
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection


def find_in(
    selector: Selector,
    taking: Taking,
    aim: Aim,
    vector: np.ndarray,
    context: Context,
    *,
    holds: bool = False,
) -> Found | None:
    """Select from what a pass took, where that is enough; else give it back to the vector.

    Parameters
    ----------
    vector : without the entries that were taken
    context : with the engine's kernels
    holds : entries that the pass took too much are not put back here

    Returns
    -------
    Found
        None where the whole vector has to be searched.
    """
    taken, kernels = taking.taken, context.kernels
    if taken is None:
        return None
    cut = selector.cut(taken, aim, context)
    if cut is not None:
        # Where other values are sent, the memory keeps the difference to what lies in the vector.
        if selector.changes_values:
            kernels.restore(vector, taken)
            found = cut_down(selector, taken, cut, aim, kernels, None)
            return found._replace(is_taken=False)
        return cut_down(selector, taken, cut, aim, kernels, None if holds else vector)
    if not selector.asks_kernels:
        kernels.restore(vector, taken)
        return None
    listed = ListedKernels(kernels, vector, taken, aim, taking.brought)
    found = selector.find(
        vector, context._replace(kernels=cast(Kernels, listed), reached=taken.count)
    )
    if listed.is_whole:
        return found
    found = found._replace(passes=0, is_one_pass=True)
    if selector.changes_values:
        listed.make_whole()
        return found
    if not holds and found.selection.count < taken.count:
        kernels.restore(vector, taken.without(found.selection))
    return found._replace(is_taken=True)


def cut_down(
    selector: Selector,
    taken: Selection,
    cut: Cut,
    aim: Aim,
    kernels: Kernels,
    into: np.ndarray | None,
) -> Found:
    """Return what a selector's decision leaves of entries, as they are sent.

    into : the vector that they were taken from, which the others go back to; None keeps them out
    """
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


def bounded(
    found: Found, most: int | None, vector: np.ndarray, kernels: Kernels | ModuleType
) -> Found:
    """Cut what was found to its largest entries where it is more than ``most``; the others stay in
    the vector."""
    chosen = found.selection
    if most is None or chosen.count <= most:
        return found
    is_zero = chosen.values == 0  # zeros lose nothing by not being sent
    if is_zero.any():
        chosen = Selection(chosen.indices[~is_zero], chosen.values[~is_zero], chosen.numel)
    if chosen.count > most:
        chosen, _ = kernels.trim(chosen, most, vector if found.is_taken else None)
    return found._replace(selection=chosen)
