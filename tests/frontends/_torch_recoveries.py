"""Faults in the middle of training: the step is taken back on every rank, and training can go
on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases
from _torch_cases import digest_of
from _torch_fault_tools import compress, last_rank, raised_by
from _torch_laws import Gradients, Ledger

from hvd_sparse.selectors.contract import Selector
from hvd_sparse.selectors.topk import TopK

SHAPES = {"early": (8, 9), "late": (5, 7)}
BROKEN_STEP = 3
cases = Cases()


def broken_selector(step: Callable[[], None], gradients: Gradients) -> dict[str, Any]:
    """On one rank, choosing the second tensor's entries raises."""
    mended = TopK.find, TopK.cut, TopK.band

    def check(numel: int) -> None:
        if last_rank() and numel == gradients["late"].numel():
            raise RuntimeError("the selector broke")

    def find(self: TopK, accumulated: Any, context: Any) -> Any:
        check(accumulated.size)
        return mended[0](self, accumulated, context)

    def cut(self: TopK, taken: Any, aim: Any, context: Any) -> Any:
        check(taken.numel)
        return mended[1](self, taken, aim, context)

    # no band, so that the pass is behind the tensor when its entries are chosen
    TopK.find, TopK.cut, TopK.band = find, cut, Selector.band  # type: ignore[method-assign]
    try:
        return raised_by(step)
    finally:
        TopK.find, TopK.cut, TopK.band = mended  # type: ignore[method-assign]


def not_a_number(step: Callable[[], None], gradients: Gradients) -> dict[str, Any]:
    if last_rank():
        gradients["late"][1, 2] = torch.nan
    return raised_by(step)


def recover(name: str, *, fault: Callable[..., dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Six steps of chosen gradients, the third of which fails.

    Measured: the error, whether the residuals are what they were, and what is lost at the end.
    """
    ledger = Ledger(SHAPES, lambda named: compress(named, name=name, **options))
    measured: dict[str, Any] = {}
    for number in range(1, 7):
        gradients = ledger.gradients(number)
        if number != BROKEN_STEP:
            ledger.take_step(gradients)
            continue
        before = residuals_of(ledger.compressor)
        measured = fault(partial(ledger.take_step, gradients), gradients)
        measured["residuals_kept"] = residuals_of(ledger.compressor) == before
        forget_step(ledger.optimizer)
        if not options.get("rollback", True):
            ledger.note_given(gradients)
    measured["lost"] = ledger.lost_entries()
    stats = ledger.compressor.stats()
    measured["steps"], measured["dense_steps"] = stats["steps"], stats["dense_steps"]
    ledger.compressor.close()
    return measured


def forget_step(optimizer: Any) -> None:
    """Make Horovod's optimizer ready for a new step: its names are free when their old allreduces
    are done."""
    for handle, _ in optimizer._handles.values():
        hvd.synchronize(handle)
    optimizer.load_state_dict(optimizer.state_dict())


def residuals_of(compressor: Any) -> dict[str, str]:
    tensors = compressor.state_dict()["tensors"]
    return {key: digest_of([state["arrays"]["residual"]]) for key, state in tensors.items()}


cases["a_raise_inside_one_compress"] = partial(recover, fault=broken_selector)
cases["a_raise_inside_one_compress_without_rollback"] = partial(
    recover, fault=broken_selector, rollback=False
)
cases["not_a_number_on_one_rank"] = partial(recover, fault=not_a_number, on_nonfinite="raise")
cases["not_a_number_on_one_rank_in_a_dense_step"] = partial(
    recover, fault=not_a_number, on_nonfinite="raise", allow_dense=True, density=0.5
)
