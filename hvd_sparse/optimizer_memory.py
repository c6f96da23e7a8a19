"""Adapts a compressor to the program's optimizer.

If the optimizer is passed as ``optimizer=``, this module chooses the memory (the part that keeps
the residual) that computes the optimizer's updates. If not, this module checks the optimizer's
momentum. It also predicts the learning rates for the schedule ``learning_rate``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.contract import Memory
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.memories.momentum_feedback import MomentumFeedback
from hvd_sparse.memories.muon_correction import MuonCorrection
from hvd_sparse.registry import MEMORIES
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.types import Option, Pace

logger = logging.getLogger("hvd_sparse")

COSTS_ACCURACY_AT = 0.01
"""Highest density at which momentum with plain error feedback was measured to cost accuracy."""
KEPT = ("masking", "clip_norm")
"""Those options of memories that optimizers do not have."""
OF_SGD: tuple[type, ...] = (MomentumFeedback, MomentumCorrection)
OF_ADAM: tuple[type, ...] = (AdamCorrection,)
OF_MUON: tuple[type, ...] = (MuonCorrection,)
"""``OF_SGD``, ``OF_ADAM`` and ``OF_MUON``: the classes of the memories that can compute the update
of this kind of optimizer."""
ADAPTIVE = {"alpha", "rho", "lr_decay", "initial_accumulator_value"}
"""Options of RMSprop, Adadelta and Adagrad."""

SLACK = 0.05
"""Tolerated difference from the predicted learning rate, as a fraction of the mean rate."""


@dataclass(frozen=True)
class Handover:
    """An optimizer's name, and the classes of the memories that can compute its updates in its
    place, the default class first."""

    name: str
    memories: tuple[type, ...]

    def join(self, given: object) -> object:
        """Return the memory to use: the user's memory, ``given``, or the default if this is None.
        If no memory can compute the optimizer's updates, the default is ``ErrorFeedback``, and a
        warning is logged. Raises InvalidOption if only other memories than ``given`` can.

        Options that the optimizer has too, for example momentum, get their default values, because
        the optimizer supplies their values in every step. Thus the configuration in a checkpoint
        stays the same if a schedule changes the momentum."""
        chosen: Memory | None = None if given is None else MEMORIES.resolve(given)
        if not self.memories:
            chosen = ErrorFeedback() if chosen is None else chosen
            logger.warning(
                "%s: no memory can do this optimizer's work, so its gradients are sent with "
                "memory %s. The optimizer gets rare, large entries, which can cost "
                "accuracy at low densities if it has momentum or adaptive steps: use SGD, Adam, "
                "AdamW, NAdam or Muon, or a density above %g",
                self.name,
                chosen.id,
                COSTS_ACCURACY_AT,
            )
            return chosen
        if chosen is None:
            return self.memories[0]()
        if type(chosen) not in self.memories:
            known = " or ".join(repr(memory.id) for memory in self.memories)  # type: ignore
            raise InvalidOption(
                f"memory is {chosen!r}, and optimizer={self.name} takes {known}, "
                "which does the optimizer's work before the selection: leave out one of them"
            )
        kept = {name: getattr(chosen, name) for name in KEPT if hasattr(chosen, name)}
        return type(chosen)(**kept)


def judge(
    configuration: Configuration, settings: Iterable[Mapping[str, Option]], *, is_forewarned: bool
) -> None:
    """Check an optimizer that was not passed to the compressor; ``settings`` are those of its
    parameter groups. Raises InvalidOption if both the optimizer and the memory apply momentum. Logs
    a warning if momentum or adaptive steps can cost accuracy, because the density is low and the
    memory does not apply momentum, unless the user has been warned already (``is_forewarned``)."""
    memory = configuration.memory
    if memory.counts_votes:
        return  # votes are signs without magnitudes, so the optimizer may have momentum
    for each in settings:
        habit = _momentum_in(each)
        if memory.finishes and habit is not None:
            raise InvalidOption(
                f"the optimizer has {habit}, and the compressor's memory applies momentum already: "
                "doubled momentum diverges; give the optimizer to the compressor, by its option "
                "optimizer=, or use SGD without momentum"
            )
        if habit is None and not ADAPTIVE.isdisjoint(each):
            habit = "adaptive steps"
        density = configuration.density(LONG_RUN)
        is_rare = density is not None and density <= COSTS_ACCURACY_AT and not memory.finishes
        if habit is not None and is_rare and not is_forewarned:
            logger.warning(
                "the optimizer has %s and gets gradients of density %g with memory %s, which can "
                "cost accuracy: give the optimizer to the compressor, Compression.<method>(..., "
                "optimizer=optimizer), which then applies momentum before it selects",
                habit,
                density,
                memory.id,
            )
            return


def _momentum_in(settings: Mapping[str, Option]) -> str | None:
    if settings.get("momentum"):
        return f"momentum {settings['momentum']}"
    found = [name for name in ("betas", "beta_1") if name in settings]
    return f"{found[0]} {settings[found[0]]}" if found else None


@dataclass(eq=False)
class Rates:
    """Learning rates by parameter group, with which the schedule ``learning_rate`` compares the
    rate of each step.

    path : rates, [step][group]: the predicted rates of all steps, or only those of the first step
    is_foreseen : whether ``path`` has predicted rates
    references : for each group, the rate with which later rates are compared: the mean of ``path``.
        A loaded state replaces these numbers
    """

    path: Sequence[Sequence[float]]
    is_foreseen: bool
    is_checked: bool = True
    """Whether a rate that differs from the predicted one causes a warning, once."""

    def __post_init__(self) -> None:
        self._means = [sum(rates) / len(rates) for rates in zip(*self.path)]
        self.references = self._means.copy()
        self._last: tuple[tuple[float, ...], Pace] = (), Pace(0.0, 0.0)
        """The last arguments and result of ``pace``, which most tensors of a step share."""
        for group, reference in enumerate(self._means):
            # A group may stay at 0 if another one does not: its tensors then send nothing.
            is_still = reference == 0 and any(self._means)
            if self.is_foreseen and not (reference > 0 or is_still):
                raise InvalidOption(
                    f"the learning rate of parameter group {group} is {reference} on average: a "
                    "density that follows it would send nothing; use a schedule with rates above 0"
                )

    def pace(
        self, rate: float, group: int, step: int, most_steps: Callable[[], int] | None = None
    ) -> Pace:
        """Return a tensor's learning rate, ``rate``, and the rate with which it is compared. Log a
        warning if the rate was predicted, and differs from the prediction.

        ``step`` is the number of the tensor's completed steps, ``group`` its parameter group.
        ``most_steps()`` returns the largest number of completed steps of any tensor."""
        if group >= len(self.references):  # added to the optimizer later
            return Pace(rate, rate, is_mean=False)
        asked = rate, group, step, self.references[group]
        known, pace = self._last
        if asked == known:
            return pace
        is_off = self.is_foreseen and self.is_checked and self._is_off(rate, group, step)
        if is_off and most_steps is not None:
            # A tensor that some steps do not use lags behind the scheduler.
            step = most_steps()
            is_off = self._is_off(rate, group, step)
        if is_off:
            self.is_checked = False
            logger.warning(
                "the learning rate is %g at step %d, and %g was predicted for a scheduler that is "
                "stepped once per step, so the mean density will differ from the requested one: if "
                "the scheduler is stepped once per epoch, give the number of epochs as in "
                'schedule={"id": "learning_rate", "steps": epochs}',
                rate,
                step,
                self._foreseen(group, slice(step, step + 1))[0],
            )
        pace = Pace(rate, self.references[group], self.is_foreseen)
        self._last = asked, pace
        return pace

    def _is_off(self, rate: float, group: int, step: int) -> bool:
        if step >= len(self.path) or rate == 0:  # a program freezes a layer by a rate of 0
            return False
        margin = SLACK * self.references[group]
        if abs(rate - self._foreseen(group, slice(step, step + 1))[0]) <= margin:
            return False
        # Steps that a loss scaler skips do not advance the scheduler.
        near = 10 + step // 20
        foreseen = self._foreseen(group, slice(max(0, step - near), step + near))
        return not min(foreseen) - margin <= rate <= max(foreseen) + margin

    def _foreseen(self, group: int, steps: slice) -> list[float]:
        # A worker that joins an elastic run may have predicted a multiple of the run's rates.
        factor = self.references[group] / (self._means[group] or 1.0)
        return [factor * each[group] for each in self.path[steps]]


def first_rates(rates: Sequence[float], why: str | None) -> Rates:
    """Return ``Rates`` that compare the learning rate of each step with that of the first step,
    because later rates are not known. A warning gives ``why`` as the reason; None gives no warning.
    """
    if why is not None:
        logger.warning(
            "the density follows the learning rate, whose mean over the run is not known in "
            "advance, because %s: the density of a step is the requested one times rate / first "
            "rate, so fewer bytes are sent than requested",
            why,
        )
    return Rates([rates], is_foreseen=False)


def foreseen(path: Callable[[int], Iterable[Sequence[float]]], steps: int) -> Rates:
    """Return ``Rates`` with the predicted rates of ``steps`` steps. The function ``path`` steps a
    copy of the scheduler, and yields the parameter groups' rates of each step. Raises InvalidOption
    if the copy cannot be stepped so often."""
    try:
        rates = list(path(steps))
    except Exception as error:
        raise InvalidOption(
            f"steps is {steps}, but a copy of the scheduler could not be stepped so often "
            f"({type(error).__name__}: {error}): give the number of steps it was created for"
        ) from error
    return Rates(rates, is_foreseen=True)
