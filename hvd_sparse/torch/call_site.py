"""Check the caller of ``compress`` once, before anything is sent.

If Horovod's optimizer and the compressor have different process sets, some ranks would wait for
others that never come.  Horovod does not pass its process set to a compressor, but its calling
frame has it.  This check makes the error clear; the carrier verifies the process set at every step.
"""

from __future__ import annotations

import sys

import torch

from hvd_sparse.collectives.horovod_torch import hvd
from hvd_sparse.errors import RankMismatch, UnsupportedReduction
from hvd_sparse.untyped import Optimizer, ProcessSet, Value

FRAMES = 8
OPERATIONS = ("Adasum", "Min", "Max", "Product")


def check_call_site(process_set: ProcessSet) -> Value:
    """Return the optimizer that calls, once it has been compared; None where no optimizer of
    Horovod's does."""
    frame = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if hasattr(caller, "_allreduce_grad_async") and hasattr(caller, "process_set"):
            _compare(caller, process_set)
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _compare(optimizer: Optimizer, process_set: ProcessSet) -> None:
    if optimizer.process_set.process_set_id != process_set.process_set_id:
        raise RankMismatch(
            f"the compressor's process set is {process_set}, the optimizer's is "
            f"{optimizer.process_set}: "
            "give process_set= to both"
        )
    op = getattr(optimizer, "op", hvd.Average)
    if op not in (hvd.Average, hvd.Sum):
        name = next((name for name in OPERATIONS if getattr(hvd, name, None) == op), op)
        raise UnsupportedReduction(
            f"the optimizer's op is hvd.{name}: use hvd.Average or hvd.Sum, which alone can be "
            "restored"
        )


def refuse_parameter(tensor: torch.Tensor) -> None:
    """Raise UnsupportedReduction: Horovod passes parameters, and no gradients, only with Adasum."""
    if isinstance(tensor, torch.nn.Parameter):
        raise UnsupportedReduction(
            "Horovod hands over a parameter, not its gradient: that is op=hvd.Adasum, which has no "
            "sum to restore; use op=hvd.Average or hvd.Sum"
        )
