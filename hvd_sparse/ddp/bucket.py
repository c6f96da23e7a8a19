"""One of DDP's buckets in one step, and what the step's backward passes did to gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from hvd_sparse.collectives.contract import Pending
from hvd_sparse.errors import SparseError
from hvd_sparse.frontend.torch.arrays import is_on_device, write_back
from hvd_sparse.frontend.torch.results import remove, weakly
from hvd_sparse.step.records import Ticket


class SentBucket:
    """A bucket of DDP, from its call of the hook to the last call in the backward pass.

    buffer, gradients : DDP's flat memory of all gradients, and its parts by tensor
    lengths : entries of each tensor's part of the sum: its carrier, or the gradient itself
    uses, holds : whether this rank used each parameter, and whether each gradient holds an earlier
        result; empty if not needed
    sum, reduced : the one collective over the ranks, and its result, averaged
    """

    def __init__(self, bucket: dist.GradBucket) -> None:
        self.bucket, self.buffer, self.gradients = bucket, bucket.buffer(), bucket.gradients()
        devices = [self.buffer.device] if is_on_device(self.buffer) else None
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self.tickets: list[Ticket] = []
        self.lengths: list[int] = []
        self.uses: list[bool] = []
        self.holds: list[bool] = []
        self.sum: Pending | None = None
        self.reduced = np.empty(0)

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
    if not write_back(flat, gradient):
        gradient.copy_(torch.from_numpy(flat).view(gradient.shape))


def raise_behind_backward(error: SparseError) -> None:
    """Raise an error that all ranks have behind DDP's own end of the backward pass.

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


class Accumulation:
    """Records which parameters a step used, and whose gradients held a result when it began.

    A step's passes are those inside ``no_sync()`` and the one after them.  Autograd calls the nodes
    that accumulate gradients before DDP, so a bucket's record is complete when its hook is called.

    asks_for_results : whether a gradient that holds a result matters; reading it costs a pass
    used : positions of the parameters that this step used, as DDP counts them
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, asks_for_results: bool) -> None:
        self._parameters = parameters
        self._asks = asks_for_results
        self._untouched: set[int] = set()
        self.used: set[int] = set()
        self._kept: set[int] = set()  # whose gradients held a result when this step began
        self._hooks = [
            get_gradient_edge(parameter).node.register_prehook(weakly(self._note, position))
            for position, parameter in enumerate(parameters)
        ]

    def _note(self, position: int, gradients: Any) -> None:
        """A parameter's node is about to accumulate, or is called without a gradient."""
        gradient = self._parameters[position].grad
        if position in self._untouched:
            self._untouched.discard(position)
            if gradient is not None and bool(gradient.any()):
                self._kept.add(position)
        # DDP counts a call without a gradient, too, where there is a gradient of an earlier pass.
        if gradients[0] is not None or gradient is not None:
            self.used.add(position)

    def holds_result(self, position: int, gradient: torch.Tensor) -> bool:
        # A parameter that no pass has used gives the bucket whatever its gradient holds.
        is_left = position in self._untouched and bool(gradient.any())
        return is_left or position in self._kept

    def end(self) -> None:
        """Begin the next step: the results of this one are about to be in the gradients."""
        self.used.clear()
        self._kept.clear()
        if self._asks:
            self._untouched.update(range(len(self._parameters)))

    def close(self) -> None:
        remove(self._hooks)
