"""The compressor for the argument ``compression`` of ``horovod.torch.DistributedOptimizer``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.collectives.horovod_torch import (
    HorovodDeviceCollective,
    HorovodTorchCollective,
    catch_up,
    held,
    hvd,
)
from hvd_sparse.composition import PLANNED
from hvd_sparse.configuration import DEVICE_WIRE, HOST_WIRE, Configuration
from hvd_sparse.errors import ChangedGradient, InvalidOption, RankMismatch, SparseError
from hvd_sparse.frontend.compressor import check_process_set
from hvd_sparse.frontend.torch.applying import KeepingGroups, is_handed_over
from hvd_sparse.frontend.torch.arrays import (
    check_accumulator,
    check_device,
    flatten,
    late_gradient,
    like,
    own_memory,
    to_host,
    unflatten,
    vector_of,
)
from hvd_sparse.frontend.torch.compressor import ParameterCompressor
from hvd_sparse.kernels.torch.vector import upload
from hvd_sparse.plan.measuring import PlannedGroups
from hvd_sparse.plan.policy import EVERYTHING, FP16, SPARSE, Policy, tell_all
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.driver import NOTHING, Driver
from hvd_sparse.step.records import StepRun, Ticket
from hvd_sparse.torch.gradients import (
    Changes,
    ParameterIndex,
    check_named,
    clip_alone,
    find_optimizer,
    hold_back,
    in_words,
    refuse_parameter,
)
from hvd_sparse.torch.wire import LastGradientWait, device_of_wire, fetch_carrier
from hvd_sparse.types import Context, GradScaler, Optimizer, Option, ProcessSet, Report, TensorSpec
from hvd_sparse.watch.watchdog import PatientCollective
from hvd_sparse.wire.padding import Padding

GROUPS = "the groups that regroup() compares on all ranks"
NO_STEP = StepRun(is_closed=True)
"""The ``StepRun`` of gradients that ``Compression.auto`` sends dense or as float16, outside of any
counted step."""


class TorchCompressor(ParameterCompressor):
    """A compressor for ``hvd.DistributedOptimizer(compression=...)``, with Horovod's methods
    ``compress`` and ``decompress``. The methods of ``Compression`` create it from the named
    parameters that are also given to Horovod's optimizer. Unless the memory is "none", the
    compressor keeps a residual for each parameter that it compresses."""

    has_device_wire = True
    clips_all_gradients = True
    way_of_gradients = (
        "give the optimizer to hvd.DistributedOptimizer(optimizer, compression=compression), "
        "with the same compression, and call synchronize() before skip_synchronize()"
    )
    clipping_remedy = "leave that out and give clip_grad_norm=1.0 to the method"

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        configuration: Configuration,
        process_set: ProcessSet,
        grad_scaler: GradScaler = None,
        policy: Policy | None = None,
    ) -> None:
        self.process_set = hvd.global_process_set if process_set is None else process_set
        # Horovod calls the compressor if the world, not the process set, has several ranks.
        check_process_set(self.process_set, hvd.size())
        place = f"torch.{self.process_set.process_set_id}"
        named = check_named(named_parameters)
        super().__init__(named, configuration, place, grad_scaler, policy, np.float64)
        self.collective = HorovodTorchCollective(self.process_set)
        device = self._wire_device = device_of_wire(configuration.wire, named)
        self._carrier_device: torch.device | None = None
        self._wires: dict[int | None, tuple[torch.Tensor, torch.Tensor, np.ndarray]] = {}
        """By position, the last step's carrier, whose memory the next step uses again: as a tensor,
        what ``held`` made of it, and as an array."""
        self._dtypes = [parameter.dtype for _, parameter in named]
        self._lock = threading.RLock()  # autograd has a thread for each device
        self._index = ParameterIndex(named)
        self._changes = Changes(named)
        self._wait = LastGradientWait()
        # Expect as many gradients as in the last step. Parameters frozen from the start have none.
        self._run = StepRun(entered={i for i, (_, p) in enumerate(named) if p.requires_grad})
        self._expected = 0
        self._is_elastic = is_elastic()
        self._start(hvd.rank())
        self.step.padding = Padding(is_device=device is not None)
        if device is not None:  # handshakes, checkpoints and all other collectives use the host
            wire = HorovodDeviceCollective(self.process_set, device)
            self.messenger = PatientCollective(wire, self.watchdog)
        self._driver = Driver(self.step, self.messenger, self.name)
        if configuration.groups == PLANNED:
            self._policy = PlannedGroups(self.step, self.name)
        self._is_led = type(self._policy) is not Policy  # if not, calls are saved
        self._is_scaled = grad_scaler is not None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Context]:
        """Return the tensor for Horovod to allreduce (a carrier, or a gradient that is sent dense),
        and the context for ``decompress``."""
        with self._lock:
            if type(tensor) is not torch.Tensor:
                refuse_parameter(tensor)
            if self._is_closed or self._is_elastic or not self.has_begun:
                self._greet()
            policy = self._policy
            try:
                position = self._index.find(tensor)
                spec = self.step.specs[position]
                if tensor.dtype is not self._dtypes[position]:
                    check_accumulator(spec, tensor)
                if not tensor.is_cpu:
                    check_device(spec.key, tensor)
                if position in self.results.waiting or position in self.results.applied:
                    self.results.refuse_second(position, tensor)
            except SparseError as error:
                policy.begin(self, None)
                return self._poison(error, tensor)
            # First settle the last result: ``auto`` sends a residual again if it was thrown away.
            self.results.settle(position)
            way = policy.begin(self, position) if self._is_led else SPARSE
            ledger = self.watchdog.ledger
            if way not in (SPARSE, EVERYTHING):
                ledger.begin(spec.key)
                return self._pass_on(tensor, position, way)
            scale = self._scale_of(position) if self._is_scaled else 1.0
            if position in self.step.compressed:
                wire, ticket = self._send(tensor, position, scale, everything=way == EVERYTHING)
            else:
                wire, ticket = self._send_dense(tensor, position, scale)
            # Not before, because the driver may first wait for exchanges of a failed step.
            ledger.begin(spec.key)
            self._submitted(ticket.run)
            if self._is_led:
                policy.sent(position, ticket)
            return wire, ticket

    def _send(
        self, tensor: torch.Tensor, position: int, scale: float, *, everything: bool
    ) -> tuple[torch.Tensor, Ticket]:
        spec = self.step.specs[position]
        memory = watched = own_memory(tensor)
        late, flat = None, memory
        if self._stays[position]:
            flat = memory = vector_of(tensor, spec)
        elif flat is None and tensor.is_cpu:
            flat = flatten(tensor, spec)
        elif flat is None:
            late, flat = late_gradient(tensor, spec), NOTHING
        carrier, ticket = self._driver.compress(
            position, flat, scale, everything=everything, late=late
        )
        # Write the result where the gradient was read, if possible.
        self._changes.give(position, ticket.run, watched)
        wired = self._wires.pop(position, None)
        if wired is None or wired[2].size != carrier.size:
            wired = self._as_wire(carrier)
        else:
            wired[2][:] = carrier
        ticket.out, ticket.extra = memory, (tensor, memory, wired)
        return wired[0], ticket

    def _as_wire(self, carrier: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        device = self._carrier_device
        wire = torch.from_numpy(carrier) if device is None else upload(carrier, device)
        return wire, held(wire), carrier

    def _send_dense(
        self, gradient: torch.Tensor, position: int, scale: float
    ) -> tuple[torch.Tensor, Ticket]:
        wire = self._as_horovod_wants(gradient)
        ticket = self.step.enter_dense(position, scale, wire.nbytes)
        if wire is not self._parameters[position].grad:  # otherwise Horovod sums in place
            self._changes.give(position, ticket.run)
        ticket.extra = gradient, held(wire)
        return wire, ticket

    def _pass_on(
        self, gradient: torch.Tensor, position: int, way: str
    ) -> tuple[torch.Tensor, Ticket]:
        """Return the uncompressed gradient for Horovod to allreduce, without the residual, and the
        context for ``decompress``. The gradient is float16 if ``way`` is "fp16"."""
        is_wide = gradient.dtype in (torch.float32, torch.float64)
        wire = self._as_horovod_wants(gradient.half() if way == FP16 and is_wide else gradient)
        self.step.stats.count_bytes("dense", wire.nbytes)
        if wire is not self._parameters[position].grad:
            self._changes.give(position, None)
        ticket = Ticket(NO_STEP, self.step.keys[position])
        ticket.has_carrier, ticket.extra = False, (gradient, held(wire))
        return wire, ticket

    def _as_horovod_wants(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient as a contiguous tensor, on the host unless messages are sent from the
        device. bfloat16 becomes float32, because Horovod does not support it."""
        dense = (gradient.float() if gradient.dtype == torch.bfloat16 else gradient).contiguous()
        return dense if dense.is_cpu or self._wire_device is not None else to_host(dense)

    def _scale_of(self, position: int) -> float:
        if position in self._run.entered:  # a new step; the last may have had no result
            self._scale.forget()
        return self._scale()

    def _submitted(self, run: StepRun) -> None:
        if run is not self._run:
            self._expected, self._run = len(self._run.entered), run
        if len(run.entered) != self._expected:
            return
        if self._recorder is not None:
            self._recorder.submitted(run)
        if not self._is_on_devices:  # with devices, exchanges may not have begun
            self._wait.begin(self._driver.has_arrived, run.began_s)

    def decompress(self, tensor: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return the reduced gradient, in the dtype and memory layout of the gradient."""
        if ctx is None:
            return tensor  # a sparse gradient, which Horovod exchanged by itself
        policy = self._policy
        if self._is_led:
            policy.requested()
        if self._is_scaled:
            self._scale.forget()
        try:
            if self._changes.given:
                self._refuse_changes(tensor, ctx)
            result = (self._finish if ctx.has_carrier else self._finish_dense)(tensor, ctx)
            self._hand_out(ctx, result)
            self.watchdog.ledger.end(ctx.key)
        except BaseException:
            policy.fail()
            self.watchdog.ledger.clear()
            raise
        finally:
            ctx.extra = None  # otherwise the gradient would live as long as the ticket
        if self._is_led:
            policy.arrived()
        return result

    def _finish(self, tensor: torch.Tensor, ticket: Ticket) -> torch.Tensor:
        gradient, memory, wired = ticket.extra
        is_in_place = tensor is wired[0] and tensor.is_cpu
        reduced = wired[2] if is_in_place else fetch_carrier(tensor)
        flat = self._driver.decompress(reduced, ticket, self._value_for(ticket))
        if is_in_place and reduced.size == ticket.layout.size:  # a dense step's has its result
            self._wires[ticket.position] = wired
        if flat is memory and gradient.is_cpu:
            # Return the gradient itself, into which Horovod puts the result: a new tensor around
            # its memory would keep the old one alive, one more at every step.
            return gradient
        return unflatten(flat, gradient)

    def _finish_dense(self, reduced: torch.Tensor, ticket: Ticket) -> torch.Tensor:
        gradient, _ = ticket.extra
        if not reduced.is_cpu:
            catch_up(reduced.device)
        if ticket.error is not None:
            self._driver.refuse(ticket)
        if ticket.position is None:  # the policy has passed it on
            return like(reduced, gradient)
        has_memory = ticket.state is not None
        if not (reduced.is_cpu or has_memory) and bool(reduced.isfinite().all()):
            # As ``finish_dense`` does, without a copy to the host.
            ticket.run.completed.add(ticket.position)
            return like(reduced, gradient)
        flat = flatten(reduced, self.step.specs[ticket.position])
        finished = self._driver.finish_dense(ticket, flat, self._value_for(ticket))
        if finished is not flat:
            return unflatten(finished, gradient)
        is_same = reduced.dtype == gradient.dtype and gradient.is_cpu and gradient.is_contiguous()
        return reduced if is_same else like(reduced, gradient)

    def _refuse_changes(self, tensor: torch.Tensor, ctx: Context) -> None:
        keys, run = self._changes.take()
        if ctx.run.errors:  # the watchdog must not end this rank before it raises them
            self.watchdog.ledger.clear()
        if not keys:
            return
        error = ChangedGradient(in_words(keys))
        if run is None:  # only sums of Horovod are running
            self.watchdog.ledger.clear()
            raise error
        if run.failure is None and not run.errors:  # otherwise ``decompress`` raises these
            carried = (ctx, fetch_carrier(tensor)) if ctx.has_carrier else None
            self._driver.abandon(run, error, carried)

    def _poison(self, error: SparseError, gradient: torch.Tensor) -> tuple[torch.Tensor, Context]:
        """Return a tensor for Horovod to allreduce although this rank failed, so that the other
        ranks do not wait forever, and the context for ``decompress``. The tensor is a carrier that
        reports the failure, or the gradient itself if this gradient is never compressed."""
        key = f"of shape {list(gradient.shape)}"
        is_sparse = self.configuration.is_sparse(tuple(gradient.shape), gradient.numel())
        wire, ticket = self._driver.poison(error, key, np.float64, has_carrier=is_sparse)
        if not is_sparse:
            dense = self._as_horovod_wants(gradient)
            self.step.stats.count_bytes("dense", dense.nbytes)
            ticket.extra = gradient, held(dense)
            return dense, ticket
        wired = self._as_wire(wire)
        ticket.extra = gradient, None, wired
        return wired[0], ticket

    @property
    def wire(self) -> str:
        """The memory from which messages are sent: "host" or "device"."""
        return HOST_WIRE if self._wire_device is None else DEVICE_WIRE

    def stats(self) -> Report:
        """Return the entries of ``ParameterCompressor.stats``, and "wire": "host" or "device"."""
        return {**super().stats(), "wire": self.wire}

    def _describe(self, specs: Sequence[TensorSpec]) -> Report:
        return {**super()._describe(specs), "wire": self.wire}

    def _greet(self) -> None:
        """Run the handshake with the other ranks, if it is due: before the first step, and after an
        elastic restart. Raises InvalidOption if the compressor is closed."""
        if self._is_closed:
            raise InvalidOption(
                f"the compressor {self.name!r} is closed, but an optimizer that got it still "
                "exists, with Horovod's hooks on the parameters: delete the optimizer and call "
                "gc.collect() twice before the next backward pass"
            )
        if not self.has_begun:
            self._look_at(find_optimizer(self.process_set))
        if not self.step.world_size:  # an elastic state may have been synchronized before
            self._meet()
        self._follow_world()
        self.has_begun = True

    def _follow_world(self) -> None:
        # When workers only leave, Horovod does not synchronize elastic states.
        met = self.step.rank, self.step.world_size
        now = self.collective.rank, self.collective.world_size
        if self._is_elastic and self.step.world_size and met != now:
            self.rejoin()

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute an optimizer's updates from now on; the optimizer only applies them. But in a
        world of one rank, or outside of the process set, Horovod calls no compressor, so there the
        optimizer still computes its updates, unless another compressor computes them."""
        is_alone = hvd.size() == 1 and not is_elastic()
        if not self.process_set.included() or is_alone:
            if is_handed_over(optimizer):  # to a compressor of a process set with this rank
                return
            bound = self.configuration.clip_grad_norm
            if bound is not None:
                self.results.hooks.append(clip_alone(self._parameters, bound))
            KeepingGroups.mix_into(optimizer)
            return
        super().take_over(optimizer)

    def derived(self, cls: type) -> None:
        if self.configuration.clip_grad_norm is not None and hasattr(cls, "synchronize"):
            hold_back(cls, self._clip_behind)

    def _clip_behind(self, caller: Optimizer, gradients: list[torch.Tensor]) -> None:
        self._greet()
        self._scale.forget()
        self._clip(gradients, is_sum=caller.op == hvd.Sum)

    def _look_at(self, caller: Optimizer) -> None:
        """Check Horovod's optimizer, which makes the first call of ``compress``, and adopt its
        reduction (average or sum). ``caller`` is None if no optimizer is calling."""
        # With Horovod's groups, carriers and dense gradients share a call, and so need one device.
        if caller is None or getattr(caller, "_groups", None) is not None:
            self._carrier_device = self._wire_device
        if caller is None:
            return
        self.step.reduction = "sum" if caller.op == hvd.Sum else "average"
        # torch.compile(optimizer.step) would trace into this code, and fail at views of bytes.
        # Horovod makes a class for every optimizer, so this class is changed.
        cls = type(caller)
        cls.synchronize = torch._disable_dynamo(cls.synchronize)
        if self._follower is not None:
            self._follower.meet(caller)
            return
        self._judge(caller)

    def regroup(self, groups: Option) -> None:
        """Change which tensors share a message, from the next step on. Collective: all ranks call
        it between steps, with the same groups. Residuals are kept. Results are bit-identical to
        those without the change, except with select_over="group", where changed groups restart
        their threshold search. In an elastic run, each ``sync`` of the state, also the first,
        restores the groups of the option ``groups``.

        Parameters
        ----------
        groups : as the option ``groups``. "planned" measures and plans again; it is allowed only
            for a compressor that was made with groups="planned"

        Raises
        ------
        RankMismatch : ranks give different groups
        InvalidOption : a step is running, or the groups are invalid
        """
        plan, invalid = [], None
        try:
            if PLANNED == groups != self.configuration.groups:
                raise InvalidOption(
                    "groups is 'planned', which can only be chosen before the first step: make the "
                    "compressor with groups='planned'"
                )
            plan = grouped(self.step.specs, replace(self.configuration, groups=groups))
        except InvalidOption as error:  # raised below, because the other ranks wait for this one
            invalid = error
        name = f"hvd_sparse.groups.{self.name}"
        told = tell_all(self, GROUPS, name, [groups == PLANNED, plan])
        if invalid is not None:
            raise invalid
        if any(other != told[0] for other in told):
            raise RankMismatch(
                f"ranks were given different groups: {groups!r} here; give all of them the same"
            )
        self.step.regroup(plan)
        self._policy.regrouped(groups)

    def close(self) -> None:
        super().close()
        self._changes.forget()

    def go_back(self) -> None:
        # Other ranks may have applied the results that wait here, and may resume from this step.
        self.results.settle_all()
        super().go_back()

    def _forget_world(self) -> None:
        super()._forget_world()
        self._scale.forget()
        self._driver.forget()
        # New workers know neither a plan nor the groups of ``regroup``.
        self.step.regroup(grouped(self.step.specs, self.configuration), is_over=True)
        self._changes.forget()
        self.results.settle_all()  # a discarded result leaves no trace in the state to agree on
