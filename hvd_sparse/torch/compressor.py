"""The compressor that PyTorch programs give to ``hvd.DistributedOptimizer(compression=...)``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hvd_sparse.autotune.fallback import AutoMethod
from hvd_sparse.autotune.group_plan import GroupPlan
from hvd_sparse.autotune.trial import Trial
from hvd_sparse.collectives._process_set import rank_in
from hvd_sparse.collectives.horovod_torch import HorovodTorchCollective, hvd
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.core.step.buckets import grouped
from hvd_sparse.core.step.driver import NOTHING, Driver
from hvd_sparse.core.step.handover import Handover, warn_of_rare_entries
from hvd_sparse.core.step.records import Ticket
from hvd_sparse.core.step.step import Step
from hvd_sparse.errors import (
    ExchangeTimeout,
    InvalidOption,
    RankMismatch,
    SparseError,
    UnsupportedReduction,
)
from hvd_sparse.frontend.compressor import check_keys, check_process_set, is_elastic
from hvd_sparse.frontend.durable import DurableCompressor
from hvd_sparse.methods import Methods
from hvd_sparse.resilience.checkpoint_file import with_arrays
from hvd_sparse.resilience.gathering import Gatherer
from hvd_sparse.torch.arrays import check_device, flatten, like, memory_of, spec_of, unflatten
from hvd_sparse.torch.call_site import check_call_site
from hvd_sparse.torch.identity import ParameterIndex
from hvd_sparse.torch.last_gradient_wait import Rest
from hvd_sparse.torch.optimizer import Follower, habits_of, read_optimizer, refuse_momentum
from hvd_sparse.torch.scaler import scale_of


@dataclass(eq=False)
class DenseTicket:
    """A tensor that Horovod's allreduce takes as it is."""

    gradient: torch.Tensor
    ticket: Ticket

    @property
    def key(self) -> str:
        """The tensor's."""
        return self.ticket.key


class TorchCompressor(DurableCompressor):
    """A stateful compressor with Horovod's ``compress`` and ``decompress``.  Made by
    ``Compression``."""

    _sends_everything = False
    """The step that is under way runs dense, residual included; the same on all ranks."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        configuration: Configuration,
        process_set: Any,
        grad_scaler: Any = None,
    ) -> None:
        self._scale = scale_of(grad_scaler)
        named = _check_named(named_parameters)
        specs = [spec_of(name, parameter) for name, parameter in named]
        self.process_set = hvd.global_process_set if process_set is None else process_set
        check_process_set(self.process_set)
        super().__init__(
            configuration, f"torch.{self.process_set.process_set_id}", self.process_set.size()
        )
        self._take_name(specs)
        kernels = resolve_engine(configuration.engine)
        self.step = Step(
            configuration, specs, grouped(specs, configuration), kernels, carrier_dtype=np.float64
        )
        self.collective = HorovodTorchCollective(self.process_set)
        self._driver = Driver(self.step, self.collective, self.name)
        self._index = ParameterIndex(named)
        self._rest = Rest()
        self._follower: Follower | None = None
        self._has_shaken_hands = self._is_closed = False
        self._watch(rank_in(self.process_set))
        self._trace(hvd.rank)

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What Horovod is to allreduce in the gradient's place, and what ``decompress`` needs."""
        if isinstance(tensor, torch.nn.Parameter):
            raise UnsupportedReduction(
                "Horovod hands over a parameter, not its gradient: that is op=hvd.Adasum, which "
                "has no sum to restore; "
                "use op=hvd.Average or hvd.Sum"
            )
        self._greet()
        try:
            position = self._index.find(tensor)
            spec = self.step.specs[position]
            check_device(spec.key, tensor)
        except SparseError as error:
            return self._poison(error, tensor)
        self.watchdog.ledger.begin(spec.key)
        if not self.configuration.is_sparse(spec.shape, spec.numel):
            ticket = self.step.receiving.enter_dense(position, self._scale())
            self._pause(ticket)
            return self._leave_dense(tensor, ticket)
        wire, ticket = self._driver.compress(
            position, flatten(tensor, spec), self._scale(), everything=self._sends_everything
        )
        ticket.extra = tensor
        self._pause(ticket)
        return torch.from_numpy(wire), ticket

    def _pause(self, ticket: Ticket) -> None:
        """Wait asleep at the last gradient of a step, rather than in Horovod's loop."""
        entered = len(ticket.run.entered)
        if entered == 1:
            self._rest.begin()
        if entered == len(self.step.specs):
            under_way = self._driver.under_way()
            self._rest.take(lambda: all(pending.is_done() for pending in under_way))

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced gradient, in the dtype and memory layout of the one that ``compress`` was
        given."""
        if ctx is None:
            return tensor  # a sparse gradient, which Horovod exchanged by itself
        ledger = self.watchdog.ledger
        try:
            with ledger.waiting():
                result = self._finish(tensor, ctx)
        except ExchangeTimeout as error:
            self._explain(error)
        except Exception:
            ledger.clear()
            raise
        ledger.end(ctx.key)
        return result

    def _finish(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        if isinstance(ctx, DenseTicket):
            return self._finish_dense(tensor, ctx)
        out = (
            memory_of(ctx.extra, self.step.specs[ctx.position])
            if ctx.position is not None
            else None
        )
        return unflatten(
            self._driver.decompress(tensor.numpy(), ctx, self._parameter(ctx), out), ctx.extra
        )

    def regroup(self, groups: Any) -> None:
        """Let other tensors travel together from the next step on.  Collective: between steps, on
        all ranks alike.

        groups : as the option of that name; "planned", for measuring anew, only if it was that at
            first.  Nothing that is kept back is lost.  Gradients stay the same bits, but with
            select_over="group", where groups that are not as they were start their search for a
            threshold anew

        RankMismatch if ranks give different ones.
        """
        if PLANNED == groups != self.configuration.groups:
            raise InvalidOption(
                "groups is 'planned', which is settled before the first step: make the compressor "
                "with it"
            )
        plan = grouped(self.step.specs, replace(self.configuration, groups=groups))
        told = Gatherer(self.collective, f"hvd_sparse.groups.{self.name}", self._limit_s).tell_all(
            [groups == PLANNED, plan]
        )
        if any(other != told[0] for other in told):
            raise RankMismatch(
                f"ranks were given different groups: {groups!r} here; give all of them the same"
            )
        self.step.regroup(plan)

    @property
    def plan(self) -> GroupPlan | None:
        """What ``groups="planned"`` has measured and decided; None until it has, and without it."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """As of every compressor, with the arrays as tensors: ``torch.save`` it, ``torch.load(...,
        weights_only=True)``."""
        return with_arrays(super().state_dict(), torch.from_numpy)

    def close(self) -> None:
        super().close()
        self._is_closed = True
        self._index.close()

    def _greet(self) -> None:
        """Know the other ranks."""
        if self._is_closed:
            raise InvalidOption(
                f"the compressor {self.name!r} is closed, and an optimizer that it was given to is "
                "still there, with "
                "Horovod's hooks on the parameters: del it and call gc.collect() before the next "
                "backward pass"
            )
        if not self._has_shaken_hands:
            self._shake_hands()
        elif (
            self.is_in_another_world
        ):  # where workers only left, Horovod's elastic states are not synchronized
            self.rejoin()

    def _shake_hands(self) -> None:
        self._look_at(check_call_site(self.process_set))
        if self._world is None:  # an elastic state may have been synchronized before
            self._meet(self.step.specs, self.collective)
        self._has_shaken_hands = True

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Do an optimizer's work from now on: it applies what arrives.  Called once, by whoever
        makes the compressor.

        In a world of one rank, and outside of the process set, Horovod calls no compressor: the
        optimizer stays as it is.
        """
        if not self.process_set.included() or (self.process_set.size() == 1 and not is_elastic()):
            return
        self._follower = Follower(optimizer, self)
        self.step.settings_of = self._settings_of

    def _settings_of(self, position: int) -> dict[str, Any]:
        assert self._follower is not None
        spec = self.step.specs[position]
        return self._follower.settings_of(spec.key, self._index.parameter(position), spec)

    @property
    def has_begun(self) -> bool:
        """Whether gradients come through this compressor."""
        return self._has_shaken_hands

    def _look_at(self, caller: Any) -> None:
        """Horovod's optimizer, which calls for the first time; None where something else does."""
        if caller is None:
            return
        self.step.reduction = "sum" if caller.op == hvd.Sum else "average"
        if self._follower is not None:
            self._follower.meet(caller)
        elif self.configuration.memory.finishes:
            refuse_momentum(caller)
        elif not self.is_forewarned:
            found = [what for what in map(habits_of, caller.param_groups) if what is not None]
            if found:
                warn_of_rare_entries(self.configuration, found[0])

    def _forget_world(self) -> None:
        super()._forget_world()
        self._driver.forget()

    def _parameter(self, ticket: Ticket) -> np.ndarray:
        """The value of a ticket's parameter, for memories that finish with it."""
        if ticket.position is None or not self.configuration.memory.finishes:
            return NOTHING
        return flatten(self._index.parameter(ticket.position), self.step.specs[ticket.position])

    def _finish_dense(self, reduced: torch.Tensor, ctx: DenseTicket) -> torch.Tensor:
        if ctx.ticket.error is not None:
            self._driver.refuse(ctx.ticket)
        assert ctx.ticket.position is not None
        flat = flatten(reduced, self.step.specs[ctx.ticket.position])
        finished = self.step.receiving.finish_dense(ctx.ticket, flat, self._parameter(ctx.ticket))
        return (
            like(reduced, ctx.gradient) if finished is flat else unflatten(finished, ctx.gradient)
        )

    def _leave_dense(
        self, gradient: torch.Tensor, ticket: Ticket
    ) -> tuple[torch.Tensor, DenseTicket]:
        """Hand the gradient itself to Horovod, which wants it contiguous and knows no bfloat16."""
        dense = gradient.float() if gradient.dtype == torch.bfloat16 else gradient
        dense = dense.contiguous()
        self.step.stats.count_bytes("dense", dense.numel() * dense.element_size())
        return dense, DenseTicket(gradient, ticket)

    def _poison(self, error: SparseError, gradient: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Submit what the other ranks expect for such a tensor, marked as failed."""
        wire, ticket = self._driver.poison(error, f"of shape {list(gradient.shape)}", np.float64)
        if not self.configuration.is_sparse(tuple(gradient.shape), gradient.numel()):
            return self._leave_dense(gradient, ticket)
        return torch.from_numpy(wire), ticket


class Compression(AutoMethod, Methods):
    """Gradient sparsification for ``horovod.torch``.

    ``params`` of every method are ``model.named_parameters()``, the same that Horovod is given:

        compression = Compression.ldte_bs(model.named_parameters(), density=0.001,
        optimizer=optimizer) optimizer = hvd.DistributedOptimizer(optimizer,
        named_parameters=model.named_parameters(),
                                             compression=compression)

    Call ``hvd.init()`` before.  Gradients on the CPU, float16, bfloat16, float32 and float64; the
    residual is float32, float64 for float64 gradients.
    """

    @classmethod
    def _create(
        cls, params: Any, configuration: Configuration, process_set: Any, grad_scaler: Any
    ) -> TorchCompressor:
        if configuration.groups == PLANNED:
            from hvd_sparse.torch.planned_groups import PlannedCompressor

            return PlannedCompressor(params, configuration, process_set, grad_scaler)
        return TorchCompressor(params, configuration, process_set, grad_scaler)

    @classmethod
    def _create_auto(
        cls,
        params: Any,
        configuration: Configuration,
        process_set: Any,
        grad_scaler: Any,
        trial: Trial,
    ) -> TorchCompressor:
        from hvd_sparse.torch.fallback import AutoCompressor

        return AutoCompressor(params, configuration, process_set, grad_scaler, trial)

    @classmethod
    def _read_optimizer(cls, optimizer: Any) -> Handover:
        return read_optimizer(optimizer)


def _check_named(named_parameters: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(named_parameters, torch.nn.Module):
        named_parameters = named_parameters.named_parameters()
    named = list(named_parameters)
    for item in named:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], torch.Tensor):
            raise InvalidOption(
                f"the parameters hold {type(item).__name__}, not pairs of name and tensor: give "
                "model.named_parameters()"
            )
    if not named:
        raise InvalidOption(
            "no parameters were given: a generator can be used only once, call "
            "model.named_parameters() again"
        )
    check_keys([name for name, _ in named])
    return named
