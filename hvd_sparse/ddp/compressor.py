"""The compressor behind a DDP model's communication hook.

During the backward pass, DDP calls the hook for one bucket after the other, in the same order on
all ranks. Each call selects the bucket's entries and starts its collectives, which run during the
backward pass. With ``clip_grad_norm``, the last call of the pass selects and starts all of them.
In both cases, the last call waits for all collectives and writes the results. One thread submits
all collectives, because torch.distributed matches them by their order.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hvd_sparse.collectives.contract import Pending
from hvd_sparse.collectives.torch_distributed import TorchDistributedCollective
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import ExchangeTimeout, InvalidOption, SparseError
from hvd_sparse.frontend.torch.arrays import flatten, is_on_device, own_memory, write_back
from hvd_sparse.frontend.torch.compressor import ParameterCompressor
from hvd_sparse.frontend.torch.results import remove, weakly
from hvd_sparse.state.state_check import bare
from hvd_sparse.step.driver import Driver
from hvd_sparse.step.records import TensorStep, Ticket
from hvd_sparse.types import GradScaler, Optimizer

PAUSE_S = 0.25
"""Seconds of sleep at a program's end, so that other threads can briefly take Python's lock."""


class DdpCompressor(ParameterCompressor):
    """A compressor of the gradients of one DDP model; ``hvd_sparse.ddp.register`` creates it."""

    clips_all_gradients = True
    counts_in_groups = True
    needs_host = "DistributedDataParallel keeps gradients in its own buckets"
    way_of_gradients = (
        "run the backward pass through the DDP model that was registered, not through its .module, "
        "and the last one before a step outside of no_sync(); if some parameters get no gradient, "
        "give DistributedDataParallel find_unused_parameters=True"
    )
    clipping_remedy = "leave that out and give clip_grad_norm=1.0 to register()"
    way_to_remake = (
        "register(model, 'from_config', config=config); to copy the model alone, copy model.module"
    )

    def __init__(
        self,
        model: DistributedDataParallel,
        configuration: Configuration,
        grad_scaler: GradScaler = None,
    ) -> None:
        named, group = parameters_of(model), model.process_group
        super().__init__(named, configuration, f"ddp.{group.group_name}", grad_scaler)
        self._model = weakref.ref(model)
        self._sent: list[SentBucket] = []
        self._buckets = 0
        self._marks_idle = False
        self._accumulation = Accumulation(self._parameters, asks_for_results=self.step.finishes)
        self._has_judged = False
        self.collective = TorchDistributedCollective(
            group, self._parameters[0].device, configuration.timeout_s
        )
        self.step.counts_together = False  # Gloo and NCCL count with 64 bits
        self._start(dist.get_rank())
        try:
            self._driver = Driver(self.step, self.collective, self.name)
            self._meet()
        except Exception:
            self.close()
            raise
        self.has_begun = True
        let_threads_finish()
        meeting = register_optimizer_step_pre_hook(weakly(self._meet_optimizer))
        self.results.hooks.append(meeting)

    def _meeting_place(self) -> str:
        # no number, because a process group matches collectives by their order alone
        return f"hvd_sparse.handshake.{self._naming.place}"

    # -- what DDP calls ---------------------------------------------------------------------------

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start a bucket's collectives. At the last bucket of a pass, also wait for all collectives
        of the step, and write the results. Return the future that DDP expects of a hook."""
        if self._is_closed:
            raise InvalidOption(
                f"the compressor {self.name!r} is closed, but DDP keeps its hook: wrap the bare "
                "model again, DistributedDataParallel(model.module)"
            )
        if bucket.index() == 0:
            model = self._model()
            assert model is not None  # it is calling this method
            # In these two modes, DDP drops the results of parameters that no rank has used.
            self._marks_idle = model.find_unused_parameters or model.static_graph
            # The forward pass after the first pass moves views of buckets to new buckets.
            is_view = model.gradient_as_bucket_view
            self.results.are_moved = is_view and not model._has_rebuilt_buckets
            self._sent, self._buckets = [], 0
            self._scale.forget()  # the last step may have had no results
        sent = SentBucket(bucket)
        self._sent.append(sent)
        if self.configuration.clip_grad_norm is None:
            self._send(sent)
        elif bucket.is_last():
            self._clip([each.buffer for each in self._sent])
            for each in self._sent:
                self._send(each)
        if bucket.is_last():
            self._finish()
        return sent.future

    def _send(self, sent: SentBucket) -> None:
        position_of, parameters = self.results.position_of, sent.bucket.parameters()
        try:
            positions = [position_of[id(parameter)] for parameter in parameters]
        except KeyError:
            model = self._model()
            assert model is not None  # it is calling this method
            frozen = {id(p) for p in parameters if id(p) not in position_of}
            names = [name for name, p in model.module.named_parameters() if id(p) in frozen]
            raise InvalidOption(
                f"DDP reduces {bare(names[0])!r}, which was frozen when register was called: "
                "freeze parameters before making DistributedDataParallel, or after register"
            ) from None
        self._arrange(positions)
        scale, policy, ledger = self._scale(), self._policy, self.watchdog.ledger
        wires = []
        for position, gradient in zip(positions, sent.gradients):
            spec = self.step.specs[position]
            policy.begin(self, position)
            self.results.settle(position)
            memory = own_memory(gradient)
            flat = flatten(gradient, spec) if memory is None else memory
            ticket: Ticket
            if position in self.step.compressed:
                wire, entered = self._driver.compress(position, flat, scale)
                entered.out = entered.extra = memory
                ticket = entered
            else:
                ticket = self.step.enter_dense(position, scale, flat.nbytes)
                wire = flat
            ledger.begin(spec.key)
            policy.sent(position, ticket)
            sent.tickets.append(ticket)
            wires.append(wire)
        sent.lengths = [wire.size for wire in wires]
        accumulation = self._accumulation
        if self._marks_idle:
            sent.uses = [position in accumulation.used for position in positions]
        if self.step.finishes:
            sent.holds = list(map(accumulation.holds_result, positions, sent.gradients))
        joined = np.concatenate([*wires, np.array(sent.uses + sent.holds, wires[0].dtype)])
        name = f"hvd_sparse.{self.name}.sum.{sent.bucket.index()}"
        sent.sum = self.collective.allreduce(joined, name)

    def _arrange(self, positions: list[int]) -> None:
        members = tuple(sorted(i for i in positions if i in self.step.compressed))
        if members:
            known = self.step.buckets
            if self._buckets >= len(known) or known[self._buckets] != members:
                self.step.put_bucket(self._buckets, members)
            self._buckets += 1

    def _finish(self) -> None:
        del self.step.buckets[self._buckets :]
        sent, self._sent = self._sent, []
        self._accumulation.end()
        run = sent[0].tickets[0].run
        if self._recorder is not None:
            self._recorder.submitted(run)
        self._policy.requested()
        try:
            for each in sent:
                each.arrive(self.configuration.timeout_s, self.collective.world_size)
            self._refuse_results(sent)
            for each in sent:
                self._receive(each)
        except Exception as error:
            self._policy.fail()
            self.step.transactions.fail(run, error)
            if isinstance(error, ExchangeTimeout) or not isinstance(error, SparseError):
                raise  # not an error that all ranks raise
            for each in sent:
                each.buffer.zero_()  # so that no part of the results is applied
                for ticket, gradient in zip(each.tickets, each.gradients):
                    if ticket.position is not None:
                        self.results.hand_out(ticket.position, None, gradient)
            raise_behind_backward(error)
        finally:
            self.watchdog.ledger.clear()
            self._scale.forget()
        self._policy.arrived()
        for each in sent:
            each.future.set_result(each.buffer)

    def _refuse_results(self, sent: list[SentBucket]) -> None:
        spoiled = [key for each in sent for key in each.spoiled]
        if spoiled:
            others = f" (and {len(spoiled) - 1} others)" if len(spoiled) > 1 else ""
            error = InvalidOption(
                f"tensor {spoiled[0]!r}{others}: its .grad was not empty when the backward pass "
                "began. It held the result of an earlier pass, which memory "
                f"{self.configuration.memory.id!r} would treat as a gradient: run all passes of a "
                "step but the last inside model.no_sync(), with their forward passes, call "
                "optimizer.zero_grad() before the next step, and use requires_grad_(False) for "
                "parameters that a pass does not train"
            )
            self._driver.abandon(sent[0].tickets[0].run, error)

    def _receive(self, sent: SentBucket) -> None:
        tensors = list(zip(sent.tickets, sent.gradients, sent.reduced, sent.used))
        # First those that no rank has used. Sums of a whole bucket are written together, but with
        # gradient_as_bucket_view, these gradients keep their content, perhaps an earlier result.
        for ticket, gradient, reduced, used in tensors:
            if used:
                continue
            position = ticket.position
            assert position is not None
            if ticket.bucket is not None:
                self._driver.decompress(reduced, ticket, is_dropped=True)
            self.step.transactions.drop(position, ticket.run)
            self.results.hand_out(position, None, gradient)
        for ticket, gradient, reduced, used in tensors:
            if not used:
                continue
            parameter = self._value_for(ticket)
            if not isinstance(ticket, TensorStep):
                flat = self._driver.finish_dense(ticket, reduced, parameter)
                put(flat, gradient)
            else:
                flat = self._driver.decompress(reduced, ticket, parameter)
                if flat is not ticket.extra:
                    put(flat, gradient)
            self._hand_out(ticket, gradient)

    def _hand_out(self, ticket: Ticket, result: torch.Tensor) -> None:
        # Without a backward pass, this rank is in model.join() and applies no results.
        if torch._C._current_graph_task_id() >= 0:
            super()._hand_out(ticket, result)

    # -- the optimizer ----------------------------------------------------------------------------

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute an optimizer's updates from now on; the optimizer only applies them. Raises
        InvalidOption if the optimizer lacks a parameter of the model."""
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for spec, parameter in zip(self.step.specs, self._parameters):
            if parameter not in held:
                self.close()
                raise InvalidOption(
                    f"tensor {spec.key!r} is in none of the optimizer's parameter groups: give one "
                    "optimizer that has all parameters of the registered model, or leave out "
                    "optimizer="
                )
        super().take_over(optimizer)
        # torch wraps hooks around the step of a class when an object of it is created. Here no
        # object is created, because the class of the user's object was changed.
        optimizer._patch_step_function()

    def _meet_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        """Called before each step of any optimizer. Check the first optimizer that has a parameter
        of the model: if its momentum does not fit the memory, warn or raise InvalidOption."""
        # The hook is not removed here, because torch is iterating over its hooks.
        if self._has_judged or self._follower is not None:
            return
        held = (p for group in optimizer.param_groups for p in group["params"])
        if any(id(parameter) in self.results.position_of for parameter in held):
            self._has_judged = True
            self._judge(optimizer)

    def close(self) -> None:
        """Free the compressor's name, and end telemetry and the watchdog. Training with this DDP
        model cannot continue, because DDP keeps the hook."""
        super().close()
        self._accumulation.close()


def parameters_of(model: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters that DDP reduces, as (name, parameter), with the names of the bare,
    uncompiled model. Raises InvalidOption if there is no such parameter."""
    # The names are built as in DDP, which looks up ".weight" for a parameter of the root module;
    # so "weight" in ``parameters_to_ignore`` has no effect.
    reduced = {
        parameter
        for place, module in model.module.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if f"{place}.{name}" not in model.parameters_to_ignore
    }
    named = [
        (bare(name), parameter)
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and parameter in reduced
    ]
    if not named:
        raise InvalidOption(
            "DDP reduces no parameter of this model: set requires_grad of the trained ones before "
            "making DistributedDataParallel"
        )
    return named


@cache  # once per process
def let_threads_finish() -> None:
    """Register a sleep of ``PAUSE_S`` seconds at the program's end, so that Gloo's threads can take
    the interpreter's lock before the interpreter exits. If a thread takes the lock later, the
    process aborts with "terminate called without an active exception" (pytorch/pytorch#179291). Any
    DDP program can abort in this way: the model keeps its process group, so
    ``destroy_process_group`` does not end the threads (torch 2.13)."""
    atexit.register(time.sleep, PAUSE_S)


class SentBucket:
    """A bucket of DDP, from the hook's call for this bucket to the last hook call of the pass.

    One allreduce sums an array over the ranks. The array has a part for each tensor: its dense
    gradient, or if the tensor is compressed, its carrier (a small array that can report a failure).
    At the end are the flags ``uses`` and ``holds``.

    sum : the running allreduce
    lengths : for each tensor, the number of entries of its part
    reduced : for each tensor, its part of the sum, divided by the number of ranks
    uses : for each tensor, whether this rank used the parameter; empty if not needed
    holds : for each tensor, whether its gradient held an earlier result before the pass; empty if
        not needed
    used : for each tensor, the share of the ranks that used the parameter; 1 if not needed
    spoiled : names of the tensors whose gradients held an earlier result on some rank
    """

    def __init__(self, bucket: dist.GradBucket) -> None:
        self.bucket, self.buffer, self.gradients = bucket, bucket.buffer(), gradients_in(bucket)
        devices = [self.buffer.device] if is_on_device(self.buffer) else None
        self.future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self.tickets: list[Ticket] = []
        self.lengths: list[int] = []
        self.uses: list[bool] = []
        self.holds: list[bool] = []
        self.sum: Pending | None = None
        self.reduced: list[np.ndarray] = []
        self.used: list[float] = []
        self.spoiled: list[str] = []

    def arrive(self, timeout_s: float | None, world_size: int) -> None:
        assert self.sum is not None
        average = self.sum.wait(timeout_s)
        average *= 1.0 / world_size
        *self.reduced, flags = np.split(average, np.cumsum(self.lengths))
        used, held = np.split(flags, [len(self.uses)])
        self.used = used.tolist() or [1.0] * len(self.tickets)
        self.spoiled = [ticket.key for ticket, share in zip(self.tickets, held.tolist()) if share]


def gradients_in(bucket: dist.GradBucket) -> list[torch.Tensor]:
    """Return views of a bucket's buffer, one for each gradient. As in DDP, a view has the strides
    of its parameter, for example those of the memory format channels_last. ``bucket.gradients()``
    has contiguous views, which would mix up the entries of a parameter with other strides."""
    return [
        part.as_strided(parameter.size(), parameter.stride())
        if not parameter.is_contiguous() and is_dense(parameter)
        else part
        for parameter, part in zip(bucket.parameters(), bucket.gradients())
    ]


def is_dense(parameter: torch.Tensor) -> bool:
    """Return whether a parameter's entries fill their range of memory without gaps and overlaps.
    The gradients of such parameters have the parameters' strides in DDP; all other gradients have
    the strides of a contiguous tensor."""
    return bool(torch.empty_like(parameter, device="meta").stride() == parameter.stride())


def put(flat: np.ndarray, gradient: torch.Tensor) -> None:
    if not write_back(flat, gradient):
        gradient.copy_(torch.from_numpy(flat).view(gradient.shape))


def raise_behind_backward(error: SparseError) -> None:
    """Raise an error, which all ranks have, at the end of the backward pass. If it were raised
    during the pass, DDP would refuse all later passes. In ``model.join()`` no pass is running, so
    the error is raised at once."""
    if torch._C._current_graph_task_id() < 0:
        raise error
    engine = Variable._execution_engine

    def throw() -> None:
        raise error

    # DDP queues its last callback after the hook's last call. A nested callback runs after that.
    engine.queue_callback(lambda: engine.queue_callback(throw))


class Accumulation:
    """Records which parameters were used in a step, and which had the result of an earlier pass (a
    reduced gradient) in ``.grad`` when the step began. The backward passes of a step are those
    inside ``no_sync()`` and the first pass after them.

    Hooks on the parameters' autograd nodes make the records. Autograd calls them before DDP's
    hooks, so the records of a bucket's parameters are complete when DDP calls the communication
    hook. Only with ``asks_for_results`` are gradients checked for earlier results, because reading
    them costs time.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, asks_for_results: bool) -> None:
        self._parameters = parameters
        self._asks = asks_for_results
        self._untouched: set[int] = set()
        self.used: set[int] = set()
        self._kept: set[int] = set()  # parameters whose gradients held a result
        self._hooks = [
            get_gradient_edge(parameter).node.register_prehook(weakly(self._note, position))
            for position, parameter in enumerate(parameters)
        ]

    def _note(self, position: int, gradients: Any) -> None:
        """Record the use of the parameter number ``position``. Autograd calls this hook before it
        adds to ``.grad``, even if it has no gradient to add."""
        gradient = self._parameters[position].grad
        if position in self._untouched:
            self._untouched.discard(position)
            if gradient is not None and bool(gradient.any()):
                self._kept.add(position)
        # Like DDP, count a call without a gradient as a use if an earlier pass left a gradient.
        if gradients[0] is not None or gradient is not None:
            self.used.add(position)

    def holds_result(self, position: int, gradient: torch.Tensor) -> bool:
        # If no pass has used the parameter, the bucket has the old content of its gradient.
        is_left = position in self._untouched and bool(gradient.any())
        return is_left or position in self._kept

    def end(self) -> None:
        """Drop this step's records. Call this before the step's results are written."""
        self.used.clear()
        self._kept.clear()
        if self._asks:
            self._untouched.update(range(len(self._parameters)))

    def close(self) -> None:
        remove(self._hooks)
