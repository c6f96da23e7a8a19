"""The base class of the compressors of both PyTorch frontends."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import torch

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor, scale_from
from hvd_sparse.frontend.torch.applying import MOMENTS, Follower
from hvd_sparse.frontend.torch.arrays import (
    TorchDevices,
    flatten,
    is_on_device,
    like,
    own_memory,
    spec_of,
    vector_of,
)
from hvd_sparse.frontend.torch.results import Results
from hvd_sparse.kernels.engines import resolve_engine, resolve_engine_by_place
from hvd_sparse.kernels.torch.vector import can_stop
from hvd_sparse.memories._directions import DirectionState, OptimizerMoments
from hvd_sparse.optimizer_memory import Rates, judge
from hvd_sparse.plan.measuring import HidingPolicy
from hvd_sparse.plan.policy import Policy, waiting
from hvd_sparse.state.checkpoint_file import with_arrays
from hvd_sparse.state.state_check import IncompatibleKeys
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.driver import NOTHING
from hvd_sparse.step.records import Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import GradScaler, Optimizer, Pace, Report, Settings, State

logger = logging.getLogger("hvd_sparse")

NORM = "the norm of all gradients, for clip_grad_norm"
SMALLEST = 1e-6
"""Added to the norm by which gradients are divided to clip them, as in torch's
``clip_grad_norm_``."""


class ParameterCompressor(Compressor):
    """A compressor of the gradients of PyTorch's parameters. ``carrier_dtype`` is the dtype of
    the carriers, the small arrays that are reduced in sparse steps. The default is the dtype of the
    residual.

    A gradient on an accelerator stays there if all parts and options support this. Then its
    residual and its result are there too, and only the selected entries leave the device. Otherwise
    the gradient is staged: copied to pinned memory of the host, and its result copied back. The
    host waits for the copies of all gradients of a bucket together, when it makes the bucket's
    message. In dense steps, and with exchanges of several phases, it waits for each gradient's
    copy. It never waits for the copies of results.
    """

    way_of_gradients = ""
    """Text for errors: how to make an optimizer's gradients come through the compressor."""
    clipping_remedy = ""
    """Text for warnings: what to do instead of clipping results."""
    needs_host = ""
    """The reason why this frontend copies gradients from an accelerator to the host; empty if they
    may stay on their device."""
    counts_in_groups = False
    """Whether the parameter groups of the optimizer's saved state have the key ``STEPS``."""
    has_begun = False
    """Whether a gradient has come through this compressor."""

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        configuration: Configuration,
        place: str,
        grad_scaler: GradScaler,
        policy: Policy | None = None,
        carrier_dtype: type[np.floating] | None = None,
    ) -> None:
        self._scale = StepScale(grad_scaler)
        specs = [spec_of(name, parameter) for name, parameter in named]
        configuration = configuration.for_tensors(specs)
        super().__init__(configuration, place, policy)
        self.name = self._naming.take(specs)
        self._parameters = [parameter for _, parameter in named]
        self._views: dict[int, tuple[int, np.ndarray]] = {}  # by address of the memory
        # None for a gradient on the host, and an empty text for one that stays on its device.
        self._staged_because = [
            (self.needs_host or configuration.why_staged(spec)) if is_on_device(parameter) else None
            for spec, parameter in zip(specs, self._parameters)
        ]
        self._stays = [reason == "" for reason in self._staged_because]
        resolve = resolve_engine_by_place if any(self._stays) else resolve_engine
        kernels, buckets = resolve(configuration.engine), grouped(specs, configuration)
        self.step = Step(configuration, specs, buckets, kernels, carrier_dtype)
        if configuration.hides:
            self._policy = HidingPolicy(self.step, self.name)
        self._follower: Follower | None = None
        # Ids of the parameters whose state ``Applying`` has created in the optimizer. It has zeros,
        # or values that a broadcast has written there.
        self.made_states: set[int] = set()
        self.results = Results(self.step, self._parameters)
        self._is_on_devices = any(reason is not None for reason in self._staged_because)
        if self._is_on_devices:
            self.step.transactions.devices = TorchDevices(
                [p.device if stays else None for p, stays in zip(self._parameters, self._stays)]
            )
            say_ways(self.name, sum(self._stays), filter(None, self._staged_because))

    def _value_of(self, position: int) -> np.ndarray:
        """Return a parameter's entries as a flat array. If possible, every step gets the same view
        of the parameter's memory, because making a view takes time."""
        parameter = self._parameters[position]
        place, view = self._views.get(position, (0, None))
        if view is not None and parameter.data_ptr() == place and parameter.is_contiguous():
            return view
        spec = self.step.specs[position]
        if self._stays[position]:
            return vector_of(parameter, spec)
        view = own_memory(parameter)
        if view is None:
            return flatten(parameter, spec)
        self._views[position] = parameter.data_ptr(), view
        return view

    def _value_for(self, ticket: Ticket) -> np.ndarray:
        """Return the value of a ticket's parameter, flat, if the memory reads it."""
        state = ticket.state
        if ticket.position is None or state is None or not state.memory.reads_parameter:
            return NOTHING
        return self._value_of(ticket.position)

    def _hand_out(self, ticket: Ticket, result: torch.Tensor) -> None:
        if ticket.position is None:
            return
        is_kept = ticket.state is not None and ticket.position in ticket.run.completed
        run = ticket.run if is_kept else None
        self.results.hand_out(ticket.position, run, result, ticket.scale)

    def _clip(self, gradients: list[torch.Tensor], *, is_sum: bool = False) -> None:
        """Multiply all gradients of a step by one factor, the same on all ranks, so that their norm
        is at most ``clip_grad_norm``. ``is_sum`` means that Horovod sums the ranks' gradients.
        Collective: an allreduce of one number.

        The norm is the root mean square of the ranks' norms, because each rank can compute its own
        norm before the exchange. The norm of the averaged gradient is never larger than this mean.
        With ``is_sum``, the mean is multiplied by the number of ranks. If a gradient has NaN or
        Inf, no gradient is changed, and ``compress`` reports the non-finite gradient.
        """
        bound, ranks = self.configuration.clip_grad_norm, self.collective.world_size
        assert bound is not None
        mine = np.array([squares_of(gradients) / self._scale() ** 2])
        with waiting(self, NORM):
            sum_of = self.collective.allreduce(mine, f"hvd_sparse.{self.name}.norm")
            (total,) = sum_of.wait(self.configuration.timeout_s)
        norm = math.sqrt(total / ranks) if total >= 0 else math.nan
        if is_sum:
            norm *= ranks
        shorten(gradients, norm, bound)

    def take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute an optimizer's updates from now on; the optimizer only applies them. If another
        compressor computed this optimizer's updates before, this compressor replaces it. Raises
        InvalidOption if the other compressor is not closed, and has parameters that this compressor
        lacks."""
        other = getattr(optimizer, "hvd_sparse_compressor", None)
        if other is not None and not other._is_closed:
            mine = set(map(id, self._parameters))
            lost = [s.key for s, p in zip(other.step.specs, other._parameters) if id(p) not in mine]
            if lost:
                self.close()
                raise InvalidOption(
                    f"the {type(optimizer).__name__} that is given as optimizer= belongs to the "
                    f"compressor {other.name!r}, which would lose it for tensor {lost[0]!r}: make "
                    "one compressor for all parameters, give each compressor an optimizer of its "
                    "own, or first close() the other compressor"
                )
        if other is not None:
            # The other compressor has the moments; without a state, this one would begin anew.
            optimizer.state = optimizer._whole_state()
        self._follower = Follower(optimizer, self)
        self.results.hand_over(self.way_of_gradients, self.clipping_remedy)
        self.step.settings_of = self._settings_of

    def derived(self, cls: type) -> None:
        """Called with each class that was derived from the class of the optimizer given as
        ``optimizer=``, for example by Horovod. A frontend's compressor may change this class."""

    def follow(self, rates: Rates) -> None:
        follower = self._follower
        if follower is None:  # nothing is compressed here
            return

        def pace_of(position: int) -> Pace:
            rate, group = follower.rate_of(self._parameters[position])
            transactions = self.step.transactions
            steps = transactions.staged(position).steps
            return rates.pace(rate, group, steps, transactions.most_steps)

        self.step.pace_of, self.step.references = pace_of, rates.references

    def _settings_of(self, position: int) -> Report:
        assert self._follower is not None
        spec, parameter = self.step.specs[position], self._parameters[position]
        settings = self._follower.settings_of(spec.key, parameter, lambda: self._value_of(position))
        state = self.step.transactions.staged(position)
        own = state.steps - int(getattr(state.memory, "begun", 0))
        given = self._follower.moments_of(parameter, own)
        if given is not None and not (given[1] == 0 < own and self._has(position, state, given[0])):
            arrays = {name: flatten(moment, spec) for name, moment in given[0].items()}
            moments = OptimizerMoments(arrays, given[1], self._size_of_world())
            return {**settings, "moments": moments}
        return settings

    def _optimizer_settings(self, position: int) -> Settings | None:
        follower = self._follower
        return None if follower is None else follower.settings_now(self._parameters[position])

    def optimizer_state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state that torch's plain optimizer would have for a parameter. It is empty
        before the parameter's first step, and if the memory does not compute its updates."""
        position = self.results.position_of.get(id(parameter), -1)
        if position not in self.step.compressed:
            return {}
        # If no optimizer has applied the result yet, the step may still be rolled back.
        state = self.step.transactions.peek(position, is_open=position in self.results.waiting)
        if state is None or not isinstance(state.memory, DirectionState):
            return {}
        moments = state.memory.moments(state.steps, self._size_of_world())
        arrays = self._as_tensors(position, moments)
        kept = {name: arrays[ours] for name, ours in MOMENTS.items() if ours in arrays}
        return {"step": torch.tensor(moments.steps, dtype=torch.float32), **kept}

    def _as_tensors(self, position: int, moments: OptimizerMoments) -> dict[str, torch.Tensor]:
        parameter = self._parameters[position]
        return {
            name: like(torch.from_numpy(moment).view(parameter.shape), parameter)
            for name, moment in moments.arrays.items()
        }

    def _has(self, position: int, state: TensorState, given: Mapping[str, torch.Tensor]) -> bool:
        """Return whether the moments ``given``, found in the optimizer's state, equal the moments
        of the parameter's memory, converted to tensors. If so, the memory should keep its own,
        because the conversion rounds. The state of SGD has no count of steps, so after Horovod's
        broadcast only this comparison shows that the moments are the same as before."""
        assert isinstance(state.memory, DirectionState)
        mine = self._as_tensors(position, state.memory.moments(state.steps, self._size_of_world()))
        return mine.keys() == given.keys() and all(
            torch.equal(mine[name], moment) for name, moment in given.items()
        )

    def _judge(self, optimizer: Optimizer) -> None:
        judge(self.configuration, optimizer.param_groups, is_forewarned=self.is_forewarned)

    def stats(self) -> Report:
        """Return the entries of ``Compressor.stats``, and where each gradient is compressed.

        ways : for each tensor, "host" for a gradient on the CPU; "device" for a gradient that stays
            on its accelerator; "staged" for a gradient that is copied to the CPU, and whose result
            is copied back
        staged_because : for each staged tensor, the reason
        """
        told = dict(zip(self.step.keys, self._staged_because))
        ways = {
            key: "host" if reason is None else "staged" if reason else "device"
            for key, reason in told.items()
        }
        because = {key: reason for key, reason in told.items() if reason}
        return {**super().stats(), "ways": ways, "staged_because": because}

    def state_dict(self) -> Report:
        """Return the state as in ``Compressor.state_dict``, with torch tensors instead of arrays,
        so that ``torch.save`` and ``torch.load(..., weights_only=True)`` accept it. With
        ``rollback=False``, raise InvalidOption if the optimizer has still to apply a result."""
        return with_arrays(super().state_dict(), torch.from_numpy)

    def _due(self) -> Collection[int]:
        self.results.settle_all(but_due=True)
        due = self.results.waiting.keys()
        if due and not self.configuration.rollback:
            raise InvalidOption(
                f"the state is asked for before optimizer.step() applies the result of tensor "
                f"{self.step.specs[min(due)].key!r}, and with rollback=False the residual without "
                "this step is no longer known: call state_dict(), save() and commit() after "
                "optimizer.step(), or leave out rollback=False"
            )
        return due

    def load_state_dict(self, state: State, strict: bool = True) -> IncompatibleKeys:
        found = super().load_state_dict(state, strict)
        self.results.waiting.clear()
        return found

    def close(self) -> None:
        super().close()
        self.results.close()
        # The optimizer's class holds this object, which must not hold Horovod's optimizer.
        self._follower = self.step.pace_of = None


def say_ways(name: str, stay: int, reasons: Iterable[str]) -> None:
    told = "; ".join(f"{count} because {why}" for why, count in Counter(reasons).items())
    logger.info(
        "%s: %d gradients stay on their device%s",
        name,
        stay,
        f"; others are copied to the host and back: {told}" if told else "",
    )
    if stay and not can_stop():
        logger.info(
            "%s: each of them waits for its device separately, because greenlet is not "
            "installed: pip install 'hvd-sparse[fast]'",
            name,
        )


def squares_of(gradients: Sequence[torch.Tensor]) -> float:
    parts = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return sum(float(torch.linalg.vector_norm(p, dtype=torch.float64)) ** 2 for p in parts)


def shorten(gradients: Sequence[torch.Tensor], norm: float, bound: float) -> None:
    if norm > bound and math.isfinite(norm):
        for gradient in gradients:
            gradient.mul_(bound / (norm + SMALLEST))


class StepScale:
    """The loss scale, read once a step, because reading a ``GradScaler`` waits for its device."""

    def __init__(self, grad_scaler: GradScaler) -> None:
        read = getattr(grad_scaler, "get_scale", grad_scaler)
        if read is not None and not callable(read):
            raise InvalidOption(
                f"grad_scaler is {grad_scaler!r}: give the torch.amp.GradScaler that scales the "
                "loss, or a callable that returns the scale"
            )
        self._read: Callable[[], float] = (lambda: 1.0) if read is None else read
        self._scale: float | None = None

    def __call__(self) -> float:
        if self._scale is None:
            self._scale = scale_from(self._read)
        return self._scale

    def forget(self) -> None:
        self._scale = None
