"""Follows results, which are the reduced gradients in ``.grad``, until an optimizer applies them.

If a program throws a result away, for example a discriminator's gradient in the generator's pass,
the tensor's step is rolled back. docs/adr/0035 has the rules, also for programs such as PCGrad,
which apply a combination of several results.

With ``optimizer=``, results are the optimizer's updates. If a gradient did not come through the
compressor, the optimizer computes the update itself. A warning is logged if the program clips or
unscales results, because that would change the updates.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.records import StepRun
from hvd_sparse.step.step import Step
from hvd_sparse.types import Optimizer, Value

logger = logging.getLogger("hvd_sparse")

SPARSE_REMEDY = "give Horovod's optimizer sparse_as_dense=True"
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
STEPS = 100
"""Number of first steps in which results are compared with the gradients that are applied."""
SAMPLE = 4096
"""Largest number of entries of a tensor that are compared."""
TOLERANCE = 0.02
"""Relative change of a result that 16-bit rounding and the division by a scaler may cause."""
ALIKE = 0.999
"""Smallest squared cosine at which a gradient counts as a multiple of a result, even as float16."""


def weakly(method: Callable[..., None], *first: object) -> Callable[..., None]:
    """Return a hook that calls a bound method, without keeping the method's object alive."""
    owner, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*arguments: Any) -> None:
        alive = owner()
        if alive is not None:
            function(alive, *first, *arguments)

    return call


ABANDONED: list[Value] = []
"""Hooks of compressors that the garbage collector has deleted. It may run while torch iterates over
its hooks, so these hooks are removed when the next compressor is created."""


def remove(hooks: list[Value]) -> None:
    while hooks:
        hooks.pop().remove()


@dataclass(eq=False)
class Result:
    """A parameter's result, and the version (torch's count of changes in place) that the parameter
    had when the result was returned.

    run : the step of the result
    gradient : the tensor ``.grad``; None if DDP has not created it yet, or may still replace it by
        a copy
    bits : sum of the parameter's bits, to detect changes; None if versions detect them
    in_step : whether the result was returned during an optimizer's step, because a closure ran the
        backward pass, as for LBFGS
    is_gone : whether ``.grad`` no longer has the result; None until the parameter's next gradient
        arrives, when this is checked
    """

    run: StepRun
    gradient: weakref.ref[torch.Tensor] | None
    parameter_version: int
    bits: int | None
    in_step: bool
    is_gone: bool | None = None


class Results:
    """The reduced gradients that a compressor has returned. ``waiting`` has those that no optimizer
    has applied yet, by position of the tensor. ``way`` is a text for errors: how to make gradients
    come through the compressor. ``hooks`` has all hooks, also the compressor's own, that are
    removed when the compressor is closed or deleted."""

    way = ""
    _clipping_remedy = ""
    are_moved = False
    """Whether DDP may still move the gradients, with the results in them, to other tensors."""

    def __init__(self, step: Step, parameters: Sequence[torch.Tensor]) -> None:
        self._step, self._parameters = step, parameters
        self.position_of = {id(parameter): i for i, parameter in enumerate(parameters)}
        self._trained = [
            (position, parameter)
            for position, parameter in enumerate(parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]
        self.waiting: dict[int, Result] = {}
        self.applied: dict[int, tuple[weakref.ref[torch.Tensor], int] | None] = {}
        """With ``optimizer=``, the results that an optimizer has applied, as ``.grad`` and its
        version, until the next backward pass; None if this pass is adding to the result."""
        self._is_handed_over = False
        self._is_result: dict[int, bool] = {}
        self._stepped: set[int] = set()
        self._in_step = False  # of an optimizer
        self._stepping: Callable[[], object] = lambda: None
        self._versions: dict[int, int] = {}  # of parameters, when the step began
        self._shows_versions = False
        self._is_hidden = False  # results cannot be followed, so none counts as thrown away
        self._verdict: tuple[StepRun | None, bool] = (None, False)
        self._told: set[str] = set()
        # Two results are compared with the applied gradients: in the first steps, the result of the
        # smallest tensor; and after a result was thrown away, the next result of the same tensor.
        self._smallest: Iterator[int] = iter(())
        self._compared, self._steps_compared = -1, 0
        self._after_one_gone = -1
        self._copies: dict[int, torch.Tensor] = {}
        self._left_at: dict[int, int] = {}
        remove(ABANDONED)
        self.hooks: list[Value] = [
            register_optimizer_step_pre_hook(weakly(self._begin_step)),
            register_optimizer_step_post_hook(weakly(self._end_any_step)),
        ]
        self.hooks += [
            parameter.register_hook(weakly(self._look, position))
            for position, parameter in self._trained
        ]
        weakref.finalize(self, ABANDONED.extend, self.hooks)

    def hand_over(self, way: str = "", clipping_remedy: str = "") -> None:
        """From now on, only the optimizer given as ``optimizer=`` may apply results.

        way : text for errors: how to make gradients come through the compressor
        clipping_remedy : text for warnings: what to do instead of clipping results
        """
        self._is_handed_over, self.way, self._clipping_remedy = True, way, clipping_remedy
        by_size = sorted(self._trained, key=lambda each: each[1].numel())
        self._smallest = cycle([i for i, _ in by_size if i in self._step.compressed])
        self._compared = next(self._smallest, -1)
        for position, parameter in by_size:
            renew = weakly(self._renew, position)
            self.hooks.append(parameter.register_post_accumulate_grad_hook(renew))

    def settle(self, position: int) -> None:
        """Before a tensor's next step, check whether the program discarded the tensor's last
        result. If so, warn once, and with the option ``rollback`` undo the tensor's last step."""
        if self._is_handed_over:
            self._left_at[position] = self._parameters[position]._version
        handed = self.waiting.get(position)
        if handed is None:
            return
        if self._is_thrown_away(position, handed):
            if self._step.configuration.rollback:
                self._step.transactions.give_up(position)
            self._tell_of_one_gone(position)
            if self._after_one_gone < 0:
                self._after_one_gone = position
        self.waiting.pop(position, None)
        self._copies.pop(position, None)

    def refuse_second(self, position: int, gradient: torch.Tensor) -> None:
        """Raise InvalidOption if a gradient is a result that no optimizer has applied, or a sum of
        such a result and a new gradient. With ``optimizer=``, results are updates, from which the
        memory would compute wrong moments. Warn once if an optimizer has applied the result: this
        is no error, because the program may throw the next result away, as a GAN does."""
        if position in self.applied and self._holds_applied(position):
            self._tell_once(
                "the gradient of %r has the update of the last step in it, which is sent a second "
                "time: call optimizer.zero_grad() before each batch, optimizer.step() once after "
                "it, and requires_grad_(False) for parameters that a backward pass does not train",
                self._step.keys[position],
            )
        self.applied.pop(position, None)
        handed = self.waiting.get(position)
        if handed is None or handed.gradient is None or handed.gradient() is not gradient:
            return
        is_same = self._is_result.get(position, False) and bool(gradient.any())
        if self._is_handed_over and (is_same or handed.is_gone is False):
            raise InvalidOption(
                f"tensor {self._step.keys[position]!r}: Horovod sends a reduced gradient a second "
                "time, or a sum of one and a new gradient. After optimizer.synchronize(), call "
                "optimizer.step() within 'with optimizer.skip_synchronize():'; to add up the "
                "gradients of several batches, give hvd.DistributedOptimizer "
                "backward_passes_per_step"
            )

    def _holds_applied(self, position: int) -> bool:
        applied, now = self.applied[position], self._parameters[position].grad
        if applied is None or now is None:
            return now is not None
        return now is applied[0]() and now._version == applied[1] and _has_entries(now)

    def settle_all(self, *, but_due: bool = False) -> None:
        """Settle the results of all tensors; with ``but_due``, all except those that an optimizer
        may still apply."""
        rolls_back = self._step.configuration.rollback
        due = {i for i, handed in self.waiting.items() if but_due and self._is_due(i, handed)}
        settled = [(i, handed.run) for i, handed in self.waiting.items() if i not in due]
        # After an interrupt between two results, undo the step of both: neither is applied. This is
        # decided before ``settle`` undoes single tensors, whose steps then count as incomplete too.
        interrupted = {run for _, run in settled if not run.entered <= run.completed}
        for position, run in settled:
            if rolls_back and run in interrupted and not self._has_changed(run):
                self._step.transactions.give_up(position)
            self.settle(position)

    def _is_due(self, position: int, handed: Result) -> bool:
        """Return whether an optimizer may still apply a result. Without ``optimizer=``, this is
        known once an optimizer has made a step with the parameter."""
        run = handed.run
        if not (run.keeps(position) and run.entered <= run.completed):
            return False
        # Hooks behind the optimizer's step see the new weights; a step that failed may have left
        # them as they were.
        shows = self._is_handed_over or self._shows_versions
        may_have_moved = self._in_step and (not shows or self._has_moved(position))
        if may_have_moved or not self._expects_step(position, handed):
            return False
        # If the result is gone, the step can be left out too, because it will be undone.
        return self._step.configuration.rollback or not self._has_gone(position, handed)

    def _expects_step(self, position: int, handed: Result) -> bool:
        # In one step, LBFGS computes many gradients, and changes the parameters after each.
        return (self._is_handed_over or position in self._stepped) and not handed.in_step

    def hand_out(
        self, position: int, run: StepRun | None, result: torch.Tensor, scale: float = 1.0
    ) -> None:
        """Record the result of the tensor number ``position``, which is about to be returned.
        ``run`` is the result's step, or None if the step cannot be rolled back. The loss scaler
        will divide the result by ``scale``."""
        self._is_result[position] = True
        if position in (self._compared, self._after_one_gone) and not result.is_sparse:
            part = slice(None if position == self._after_one_gone else SAMPLE)
            self._copies[position] = result.detach().reshape(-1)[part].double() / scale
        if self._is_hidden or run is None:
            return
        parameter = self._parameters[position]
        gradient, bits = None if self.are_moved else parameter.grad, None
        if not (self._is_handed_over or self._shows_versions or self._stepped):
            bits = _bits_of(parameter)
        self.waiting[position] = Result(
            run,
            None if gradient is None else weakref.ref(gradient),
            parameter._version,
            bits,
            self._in_step,
        )

    def close(self) -> None:
        self.waiting.clear()
        remove(self.hooks)

    def split(
        self, parameters: Iterable[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the parameters with a gradient in two lists: those whose ``.grad`` is an update
        from the compressor; and those that the optimizer updates by itself, because they are never
        compressed, or their gradients never came through the compressor. Raises InvalidOption if a
        parameter's present gradient did not come through the compressor, but an earlier gradient of
        the parameter did."""
        updates: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            position = self.position_of.get(id(parameter), -1)
            is_result = self._is_result.get(position)
            if is_result is False:
                raise InvalidOption(
                    f"tensor {self._step.keys[position]!r} has a gradient that did not come "
                    "through the compressor, unlike earlier ones: "
                    + (SPARSE_REMEDY if parameter.grad.is_sparse else self.way)
                    + ", or leave out optimizer="
                )
            is_update = is_result and position in self._step.compressed
            (updates if is_update else others).append(parameter)
        return updates, others

    def is_result_of(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter's present gradient came through the compressor."""
        return self._is_result.get(self.position_of.get(id(parameter), -1), False)

    def tell_of_others(self, others: Iterable[torch.Tensor], name: str) -> None:
        """Warn once about dense gradients that did not come through the compressor."""
        alone = [p for p in others if not self.is_result_of(p)]
        dense = [p for p in alone if p.grad is not None and not p.grad.is_sparse]
        if not dense:
            return
        first = dense[0]
        position = self.position_of.get(id(first))
        key = f"of shape {[*first.shape]}" if position is None else repr(self._step.keys[position])
        self._tell_once(
            "tensor %s%s has a gradient that came through no compressor: %s updates the tensor "
            "with it, and the gradient is not averaged over the ranks unless the program did so",
            key,
            f", with {len(dense) - 1} others," if len(dense) > 1 else "",
            name,
        )

    def tell_of_decay(self, decay: float, moved: Iterable[torch.Tensor]) -> None:
        for parameter in moved if decay else ():
            position = self.position_of[id(parameter)]
            version = parameter._version
            if self._left_at.get(position, version) != version:
                self._tell_once(
                    "%r was changed between its backward pass and the optimizer's step, as SAM "
                    "does, but its weight decay of %g was computed from the value in the "
                    "backward pass: use AdamW, or make the optimizer without weight_decay and "
                    "shrink the parameters before the step",
                    self._step.keys[position],
                    decay,
                )
                return

    def tell_of_rates(self, sent: float, applied: float, moved: Sequence[torch.Tensor]) -> None:
        """Warn once if only one of the learning rates of the backward pass (``sent``) and of the
        optimizer's step (``applied``) is 0. At rate 0, memories neither add nor send a gradient."""
        if moved and (sent == 0) != (applied == 0):
            self._tell_once(
                "the learning rate of %r was %g in the backward pass and is %g in the optimizer's "
                "step, so entries of its gradient are lost: set the rate before backward(), and "
                "step schedulers after optimizer.step()",
                self._step.keys[self.position_of[id(moved[0])]],
                sent,
                applied,
            )

    def _begin_step(self, optimizer: Optimizer, *_: object) -> None:
        self._in_step = True
        if not self._is_inner(optimizer):
            self._stepping = weakref.ref(optimizer)
        self._versions = {i: self._parameters[i]._version for i in self.waiting}

    def _has_moved(self, position: int) -> bool:
        return self._versions.get(position) not in (None, self._parameters[position]._version)

    def _is_inner(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer steps for ``ZeroRedundancyOptimizer``, with this rank's shard
        of the parameters only. Their step must end as that of all parameters does."""
        return getattr(self._stepping(), "optim", None) is optimizer

    def _end_any_step(self, optimizer: Optimizer, *_: object) -> None:
        # The step of the optimizer that was handed over has called ``end_step`` itself.
        if self._is_handed_over and self.waiting:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for position in self.waiting.keys() & self._step.compressed:
                parameter = self._parameters[position]
                if id(parameter) in held and parameter.grad is not None:
                    self._tell_once(
                        "a step of %s took the update of %r, which the compressor computed for "
                        "optimizer=, for a gradient, and applied its momentum or scaling again: "
                        "step only the optimizer that the compressor got, by its present step()",
                        type(optimizer).__name__,
                        self._step.keys[position],
                    )
                    break
        self.end_step(optimizer)

    def end_step(self, optimizer: Optimizer) -> None:
        if self._is_inner(optimizer):
            return
        self._in_step = False
        if not self.waiting and not self._copies:
            return
        find = self.position_of.get
        held = {find(id(p), -1) for group in optimizer.param_groups for p in group["params"]}
        held.discard(-1)
        self._stepped |= held
        for position in held & self._copies.keys():
            self._compare(position, self._parameters[position].grad, type(optimizer).__name__)
        runs = set()
        for position in held & self.waiting.keys():
            given, gradient = self.waiting[position].gradient, self._parameters[position].grad
            # If the version has changed, a hook of the optimizer has freed the gradient.
            has_moved = self._has_moved(position)
            self._shows_versions |= has_moved
            if gradient is None and not has_moved:
                continue
            runs.add(self.waiting.pop(position).run)
            self._note_applied(position, gradient)
            if given is not None and gradient is not None and gradient is not given():
                # Programs like PCGrad throw results away, and apply a combination of their copies.
                self._is_hidden = True
        for run in runs:
            self._verdict = run, True
            # The step also has tensors of other optimizers, which may still fail.
            if not (run.entered <= held or run.nonfinite & held):
                self._step.transactions.keep(run, held - self.waiting.keys())
        if self._is_hidden:
            self.waiting.clear()

    def _note_applied(self, position: int, gradient: torch.Tensor | None) -> None:
        is_update = self._is_handed_over and position in self._step.compressed
        if is_update and gradient is not None:
            self.applied[position] = weakref.ref(gradient), gradient._version

    def _compare(self, position: int, gradient: torch.Tensor | None, name: str) -> None:
        if gradient is None:
            return
        given = self._copies.pop(position)
        if gradient.is_sparse or not self._is_result[position]:
            return
        found = gradient.detach().reshape(-1)[: given.numel()].double()
        square, product = float(given @ given), float(found @ given)
        is_multiple = product**2 >= ALIKE * square * float(found @ found)
        if position == self._after_one_gone:
            self._after_one_gone = -1
            if math.isfinite(product) and not is_multiple:
                self._is_hidden = True
                self._tell_once(
                    "the optimizer applies a combination of several results, as PCGrad does, or "
                    "results whose entries were changed, for example clipped one by one: from "
                    "now on no gradient counts as thrown away, and no step is taken back for "
                    "this reason"
                )
        elif position == self._compared:
            self._steps_compared += 1
            if not square:  # all zero, so compare the next tensor
                self._compared = next(self._smallest, -1)
            elif math.isfinite(product):
                if not is_multiple or abs(product / square - 1) > TOLERANCE:
                    self._tell_of_changes(product / square, name)
                if self._steps_compared >= STEPS:
                    self._compared = -1

    def _tell_of_changes(self, factor: float, name: str) -> None:
        self._compared = -1
        self._tell_once(
            "gradients were multiplied by %g after they came back from the compressor; with "
            "optimizer= they are updates of %s, so every update is multiplied too. If they are "
            "clipped, %s; if a GradScaler divides them, give the compressor grad_scaler=scaler",
            factor,
            name,
            self._clipping_remedy,
        )

    def _renew(self, position: int, *_: object) -> None:
        if position in self._is_result:
            self._is_result[position] = False

    def _look(self, position: int, *_: object) -> None:
        if position in self.applied:
            if self._holds_applied(position):
                self.applied[position] = None
            else:
                del self.applied[position]
        handed = self.waiting.get(position)
        if handed is not None and not handed.is_gone:
            handed.is_gone = self._has_gone(position, handed)

    def _has_gone(self, position: int, handed: Result) -> bool:
        now = self._parameters[position].grad
        if now is None or (handed.gradient is not None and now is not handed.gradient()):
            return True
        # Not by the version, which ``.data.zero_()`` does not change. Entries are read only if no
        # optimizer has applied the result.
        return not _has_entries(now)

    def _is_thrown_away(self, position: int, handed: Result) -> bool:
        if handed.run.failure is not None or not handed.run.is_finite:
            return False  # the step is rolled back anyway
        if handed.is_gone is None:
            handed.is_gone = self._has_gone(position, handed)
        if not handed.is_gone:
            return False
        return self._expects_step(position, handed) or not self._has_changed(handed.run)

    def _has_changed(self, run: StepRun) -> bool:
        """Return whether any parameter has changed since its result of this step was returned.
        Only parameters whose results still wait for an optimizer are compared."""
        if self._verdict[0] is not run:
            mine = [(self._parameters[i], h) for i, h in self.waiting.items() if h.run is run]
            is_newer = any(parameter._version != h.parameter_version for parameter, h in mine)
            # Optimizers that keep float32 copies write through .data, which does not change the
            # version. Comparing the bits at every step would cost too much.
            is_written = not is_newer and any(
                h.bits is not None and _bits_of(parameter) != h.bits for parameter, h in mine
            )
            self._shows_versions |= is_newer
            self._is_hidden |= is_written
            self._verdict = run, is_newer or is_written
        return self._verdict[1]

    def _tell_of_one_gone(self, position: int) -> None:
        outcome = (
            "its step is taken back, and nothing of the gradient will be applied; if the program "
            "applies a copy of it later, make the compressor with rollback=False"
            if self._step.configuration.rollback
            else "with rollback=False its step cannot be taken back, and its unsent entries "
            "change the weights later; leave rollback=False out"
        )
        self._tell_once(
            "the gradient of %r was reduced, and thrown away before an optimizer applied it: %s. "
            "It is better not to exchange gradients of that pass: use requires_grad_(False) for "
            "parameters that it does not train, under DDP also model.no_sync() or a forward pass "
            "of model.module",
            self._step.keys[position],
            outcome,
        )

    def _tell_once(self, text: str, *words: object) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text, *words)


def _has_entries(gradient: torch.Tensor) -> bool:
    """Return whether any entry is not 0."""
    return bool((gradient._values() if gradient.is_sparse else gradient).any())


def _bits_of(parameter: torch.Tensor) -> int:
    return int(parameter.detach().view(INTEGERS[parameter.element_size()]).sum())
