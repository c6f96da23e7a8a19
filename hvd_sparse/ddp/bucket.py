"""One of DDP's buckets in one step: its submitted data and its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable

from hvd_sparse.collectives.contract import Pending
from hvd_sparse.errors import SparseError
from hvd_sparse.frontend.torch.staging import is_on_device, write_back
from hvd_sparse.step.records import Ticket


@dataclass(eq=False)
class SentBucket:
    """A bucket of DDP, from its call of the hook to the last call in the backward pass.

    bucket, buffer, gradients : DDP's, its flat memory of all gradients, and its parts by tensor
    future : DDP waits for it
    lengths : entries of each tensor's part of the sum: its carrier, or the gradient itself
    uses : whether this rank used each parameter; empty if not needed
    holds : whether each gradient holds an earlier result; empty if not needed
    sum, reduced : the one collective over the ranks, and its result, averaged
    """

    bucket: dist.GradBucket
    buffer: torch.Tensor = field(init=False)
    gradients: list[torch.Tensor] = field(init=False)
    future: torch.futures.Future[torch.Tensor] = field(init=False)
    tickets: list[Ticket] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    uses: list[bool] = field(default_factory=list)
    holds: list[bool] = field(default_factory=list)
    sum: Pending | None = None
    reduced: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.buffer, self.gradients = self.bucket.buffer(), self.bucket.gradients()
        devices = [self.buffer.device] if is_on_device(self.buffer) else None
        self.future = torch.futures.Future(devices=devices)

    def arrive(self, timeout_s: float | None, world_size: int) -> None:
        assert self.sum is not None
        self.reduced = self.sum.wait(timeout_s)
        self.reduced *= 1.0 / world_size

    def spoiled(self) -> list[str]:
        """Return the names of tensors whose gradients hold an earlier result on some rank."""
        held = self.reduced[self.reduced.size - len(self.holds) :]
        return [ticket.key for ticket, share in zip(self.tickets, held.tolist()) if share]

    def results(self) -> Iterator[tuple[Ticket, torch.Tensor, np.ndarray, bool]]:
        """Yield every ticket, gradient and part of the sum, and whether no rank used the tensor."""
        used = self.reduced[sum(self.lengths) :] if self.uses else np.ones(len(self.tickets))
        place = 0
        for ticket, gradient, length, uses in zip(
            self.tickets, self.gradients, self.lengths, used.tolist()
        ):
            yield ticket, gradient, self.reduced[place : place + length], not uses
            place += length


def put(flat: np.ndarray, gradient: torch.Tensor) -> None:
    """Write a result into a gradient, in its dtype and memory layout."""
    if not write_back(flat, gradient):
        gradient.copy_(torch.from_numpy(flat).view(gradient.shape))


def raise_behind_backward(error: SparseError) -> None:
    """Raise an error that all ranks have at the end of the backward pass, behind DDP's own end.

    DDP that is interrupted before refuses every later pass.  In ``model.join()`` there is no
    backward pass, and the error is raised at once.
    """
    if torch._C._current_graph_task_id() < 0:
        raise error
    engine = Variable._execution_engine

    def throw() -> None:
        raise error

    # DDP's end is queued behind the hook's last call; what is queued from the first comes behind.
    engine.queue_callback(lambda: engine.queue_callback(throw))
