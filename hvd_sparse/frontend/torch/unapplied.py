"""Find results that a program throws away: reduced gradients that no optimizer applies.

A discriminator's gradient in the generator's pass, SAM's first pass, a batch that is skipped: the
program resets ``.grad`` and never applies it.  With a dense allreduce nothing of it is left.  Here
the memory has kept what was not sent, and would send it later; so such a step is taken back.

A result is gone if ``.grad`` is None, another tensor or zero again before the next backward pass
adds to it.  It was applied if an optimizer that holds the parameter has finished a step meanwhile;
in a program where none ever did, if some parameter changed.  A program whose optimizer applies
other tensors than the results is not judged from its first such step on.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hvd_sparse.step.records import StepRun
from hvd_sparse.step.step import Step
from hvd_sparse.untyped import Optimizer, Value

logger = logging.getLogger("hvd_sparse")

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(eq=False)
class HandedOut:
    """A parameter's result, as it was when it was handed out.

    Attributes
    ----------
    run : the step that it is of
    gradient, gradient_version : the tensor that holds it; None where DDP will make one
    parameter_version : of the parameter
    bits : of the parameter, added up; None where versions are known to tell of changes
    in_step : an optimizer's step was under way
    is_gone : whether it was gone when the next gradient came; None before that
    """

    run: StepRun
    gradient: weakref.ref[torch.Tensor] | None
    gradient_version: int
    parameter_version: int
    bits: int | None
    in_step: bool
    is_gone: bool | None = None


class Unapplied:
    """The results of a compressor that no optimizer has applied yet.

    Parameters
    ----------
    step : takes back the steps of results that were thrown away
    parameters : in the step's order

    Attributes
    ----------
    waiting : the results, by position
    expects_steps : results are applied by an optimizer's step alone: one was handed over
    """

    def __init__(self, step: Step, parameters: Sequence[torch.Tensor]) -> None:
        self._step, self._parameters = step, parameters
        self._position_of = {id(parameter): i for i, parameter in enumerate(parameters)}
        self.waiting: dict[int, HandedOut] = {}
        self.expects_steps = False
        self._stepped: set[int] = set()
        self._under_way: weakref.ref[Optimizer] | None = None
        self._shows_versions = self._has_told = False
        self._is_hidden = False  # what becomes of results cannot be seen, and is not judged
        self._verdict: tuple[StepRun | None, bool] = (None, False)
        owner = weakref.ref(self)
        self._hooks = [
            register_optimizer_step_pre_hook(_hook(owner, Unapplied.begin_step)),
            register_optimizer_step_post_hook(_hook(owner, Unapplied.end_step)),
        ]
        self._hooks += [
            parameter.register_hook(_looker(owner, position))
            for position, parameter in enumerate(parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]
        weakref.finalize(self, _remove, self._hooks)

    def hand_out(self, position: int, run: StepRun) -> None:
        """Remember a result that the program is about to get."""
        if self._is_hidden:
            return
        parameter = self._parameters[position]
        gradient, bits = parameter.grad, None
        if not (self.expects_steps or self._shows_versions or self._stepped):
            bits = _bits_of(parameter)
        self.waiting[position] = HandedOut(
            run,
            None if gradient is None else weakref.ref(gradient),
            0 if gradient is None else gradient._version,
            parameter._version,
            bits,
            self._under_way is not None,
        )

    def settle(self, position: int) -> None:
        """Take back a tensor's last step if its result was thrown away; its next one begins."""
        handed = self.waiting.get(position)
        if handed is None:
            return
        if self._is_thrown_away(position, handed):
            if self._step.configuration.rollback:
                self._step.give_up(position)
            self._tell(position)
        self.waiting.pop(position, None)

    def settle_all(self) -> None:
        """Take back all steps whose results were thrown away: the states are asked for."""
        for position in list(self.waiting):
            self.settle(position)

    def forget(self) -> None:
        """Let go of all results: the states are others now."""
        self.waiting.clear()

    def close(self) -> None:
        """Take the hooks away."""
        self.forget()
        _remove(self._hooks)

    # -- what the hooks call ----------------------------------------------------------------------

    def begin_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer's step begins."""
        self._under_way = weakref.ref(optimizer)

    def end_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has finished a step, and so applied the gradients that it saw."""
        self._under_way = None
        if not self.waiting:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                position = self._position_of.get(id(parameter))
                if position is None:
                    continue
                self._stepped.add(position)
                if parameter.grad is not None and position in self.waiting:
                    handed = self.waiting.pop(position)
                    self._verdict = handed.run, True
                    if handed.gradient is not None and parameter.grad is not handed.gradient():
                        # PCGrad and the like reset a result, and apply what they make of a copy.
                        self._is_hidden = True
        if self._is_hidden:
            self.waiting.clear()

    def look(self, position: int) -> None:
        """See whether a result is still there, before the next gradient is added to it."""
        handed = self.waiting.get(position)
        if handed is not None and not handed.is_gone:
            handed.is_gone = self._has_gone(position, handed)

    # -- what became of a result ------------------------------------------------------------------

    def _has_gone(self, position: int, handed: HandedOut) -> bool:
        now = self._parameters[position].grad
        if now is None:
            return True
        if handed.gradient is not None:
            if now is not handed.gradient():
                return True
            # Horovod's putting it there is one change: with no other it cannot be gone.
            if now._version - handed.gradient_version <= 1:
                return False
        return not bool((now._values() if now.is_sparse else now).any())

    def _is_thrown_away(self, position: int, handed: HandedOut) -> bool:
        if handed.run.failure is not None or not handed.run.is_finite:
            return False  # it leaves no trace anyway
        if handed.is_gone is None:
            handed.is_gone = self._has_gone(position, handed)
        if not handed.is_gone:
            return False
        if self.expects_steps or position in self._stepped:
            # Within one step LBFGS takes many gradients, and moves the parameters after each.
            return not (handed.in_step and self._has_changed(handed.run))
        return not self._has_changed(handed.run)

    def _has_changed(self, run: StepRun) -> bool:
        """Tell whether anything was applied since a step's results were handed out; asked once a
        step, as its results are settled one after the other."""
        if self._verdict[0] is not run:
            self._verdict = run, self._look_for_changes(run)
        return self._verdict[1]

    def _look_for_changes(self, run: StepRun) -> bool:
        mine = [(self._parameters[i], h) for i, h in self.waiting.items() if h.run is run]
        if any(parameter._version != handed.parameter_version for parameter, handed in mine):
            self._shows_versions = True
            return True
        if any(h.bits is not None and _bits_of(parameter) != h.bits for parameter, h in mine):
            # Written through .data, as by an optimizer of copies in float32: that cannot be seen
            # at a price that every step could pay.
            self._is_hidden = True
            return True
        return False

    def _tell(self, position: int) -> None:
        """Say, once, what becomes of a result that was thrown away."""
        if self._has_told:
            return
        self._has_told = True
        outcome = (
            "its step is taken back, and nothing of it will be applied; if the program applies a "
            "copy of it later, make the compressor with rollback=False"
            if self._step.configuration.rollback
            else "with rollback=False its step cannot be taken back: what was not sent of it moves "
            "the weights later; leave rollback=False out"
        )
        logger.warning(
            "the gradient of %r was reduced, and thrown away before an optimizer applied it: %s. "
            "Better, keep that pass out of the exchange: requires_grad_(False) for what it does "
            "not train, under DDP also model.no_sync() or a forward pass of model.module",
            self._step.keys[position],
            outcome,
        )


def _bits_of(parameter: torch.Tensor) -> int:
    """Return the bits of a parameter, added up as integers: any change of one entry shows."""
    return int(parameter.detach().view(INTEGERS[parameter.element_size()]).sum())


def _hook(
    owner: weakref.ref[Unapplied], tell: Callable[[Unapplied, Optimizer], None]
) -> Callable[..., None]:
    """Return a hook of all optimizers that does not keep the compressor alive."""

    def hook(optimizer: Optimizer, *_: object) -> None:
        unapplied = owner()
        if unapplied is not None:
            tell(unapplied, optimizer)

    return hook


def _looker(owner: weakref.ref[Unapplied], position: int) -> Callable[[torch.Tensor], None]:
    """Return a hook of a parameter, called before a gradient is added to its last one."""

    def look(_: torch.Tensor) -> None:
        unapplied = owner()
        if unapplied is not None and unapplied.waiting:
            unapplied.look(position)

    return look


def _remove(hooks: list[Value]) -> None:
    for hook in hooks:
        hook.remove()
