"""``Compression.auto``, ``Compression.nothing`` and ``LocalSteps`` for all frontends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

from hvd_sparse.checks import check_number, check_truth, check_whole
from hvd_sparse.collectives.contract import is_elastic
from hvd_sparse.composition import PLANNED, refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.methods.builder import Builder, add_codec, density_for
from hvd_sparse.plan.policy import FP16, WAYS, Fallback, Trial
from hvd_sparse.types import Optimizer, Option, Params, Report, State, Value

logger = logging.getLogger("hvd_sparse")


class AutoMethod(Builder):
    """Base class of each frontend's ``Compression``, with the methods ``auto`` and ``nothing``."""

    _nothing: ClassVar[type]
    _fallback: ClassVar[type[Fallback]] = Fallback

    @classmethod
    def nothing(cls, params: Params = None) -> Value:
        """Return a compressor that sends no gradients, to measure the upper bound of any speed-up.
        Use it for timing only: every rank trains with its own gradients. ``params`` is ignored."""
        logger.warning(
            "Compression.nothing exchanges no gradients, and every rank trains alone: measure the "
            "time of a step, then train with another compression"
        )
        return cls._nothing()

    @classmethod
    def auto(
        cls,
        params: Params,
        *,
        density: Density | None = None,
        ways: Sequence[str] | None = None,
        trial_steps: int = 5,
        review_every: int = 500,
        optimizer: Optimizer = None,
        steps: int | None = None,
        **options: Option,
    ) -> Value:
        """Return a compressor that sends gradients sparse, dense or as float16, whichever was
        fastest in the first steps. Rank 0 logs the choice and its reason; ``compressor.verdict``
        has both on every rank.

        density : fraction of the entries to send. The default is 0.001 without ``steps``, and with
            ``steps`` max(0.002, 5 / steps), at most 0.01
        ways : the ways of sending to measure: any of "sparse" (LDTE-BS), "dense" (uncompressed) and
            "fp16" (dense float16, as ``hvd.Compression.fp16``); by default all
        trial_steps : number of measured steps for each way, after two warm-up steps
        review_every : number of steps between reviews of the choice; 0 turns reviews off
        optimizer, steps, scheduler : as for every method. With an optimizer, "fp16" is not allowed,
            and a dense step sends all entries that the memory holds. With PyTorch's SGD, it equals
            the optimizer's own step; with Adam and Muon, it equals a sparse step at density 1
        options : the common options, and ``selector`` in place of ``density``; without ``steps``,
            the codec is "block16" by default
        """
        if density is not None and "selector" in options:
            raise InvalidOption(
                f"auto has density {density!r} and a selector, which has a density itself: leave "
                "one of them out"
            )
        if steps is None:
            add_codec(options, "block16")
        if density is None:
            density = 0.001 if steps is None else density_for(steps)

        def make_policy(configuration: Configuration) -> Fallback:
            does_work = configuration.memory.finishes
            if does_work and optimizer is None:
                raise InvalidOption(
                    f"auto cannot send dense gradients with memory {configuration.memory!r}, "
                    "which computes the optimizer's momentum: give the optimizer, by optimizer="
                )
            if configuration.groups == PLANNED:
                raise InvalidOption(
                    "groups is 'planned', and auto measures its ways in the same steps: leave one "
                    "of them out, or give the groups that a planned run found "
                    "(compressor.plan.groups)"
                )
            refuse_hiding(configuration.rule, "auto measures its ways in the same steps")
            tried = ways
            if tried is None:
                tried = [way for way in WAYS if way != FP16 or not does_work]
            if does_work and FP16 in tried:
                raise InvalidOption(
                    "ways has 'fp16', but with optimizer= the memory keeps nothing after a dense "
                    "step, so the rounding of fp16 would be lost: leave 'fp16' or optimizer= out"
                )
            return cls._fallback(Trial(tried, trial_steps, review_every), sends_all=does_work)

        options["selector"] = options.get("selector") or {"id": "ldte_bs", "density": density}
        return cls.build(params, optimizer=optimizer, steps=steps, _policy=make_policy, **options)


class LocalStepsBase:
    """Base class of ``LocalSteps``: counts the steps of the local optimizer, and exchanges the
    changes of the parameters after every ``every`` steps."""

    compressor: Compressor

    def __init__(
        self,
        compression: Callable[..., Compressor],
        every: int,
        outer_lr: float,
        outer_momentum: float,
        nesterov: bool,
    ) -> None:
        if not callable(compression):
            raise InvalidOption(
                f"compression is {compression!r}: give a function that makes a compressor, for "
                "example functools.partial(Compression.topk, density=0.01)"
            )
        if is_elastic():
            raise InvalidOption(
                "LocalSteps is made in an elastic run, whose new workers would lack the anchors: "
                "run without --min-np, or exchange gradients at every step, without LocalSteps"
            )
        check_whole(every, "every of LocalSteps", 1)
        check_number(outer_lr, "outer_lr of LocalSteps", 0)
        check_truth(nesterov, "nesterov of LocalSteps")
        check_number(outer_momentum, "outer_momentum of LocalSteps", 0, 1, with_low=True)
        if nesterov and not outer_momentum:
            raise InvalidOption(
                "nesterov of LocalSteps is True without outer_momentum: give one, for example "
                "outer_momentum=0.9"
            )
        self.every, self.taken = every, 0

    def _take(self, compressor: Compressor) -> None:
        self.compressor = compressor
        if isinstance(compressor, Compressor):
            try:
                check_local(compressor.configuration)
            except InvalidOption:
                compressor.close()
                raise

    def advance(self) -> None:
        """Count a step of the local optimizer. Exchange the changes of the parameters if ``every``
        steps were taken since the last exchange."""
        self.taken += 1
        if self.taken >= self.every:
            self.exchange()

    def exchange(self) -> None:
        """Exchange the changes of the parameters now, for example at the end of a training whose
        number of steps is not a multiple of ``every``. Collective. The call has no effect if no
        local step was taken since the last exchange."""
        if self.taken:
            self._exchange()
            self.taken = 0

    def _exchange(self) -> None:
        raise NotImplementedError

    def stats(self) -> Report:
        """Return the compressor's ``stats()``, in which each exchange counts as one step. Raises
        InvalidOption if the compressor counts nothing (``Compression.nothing``, Horovod's own)."""
        if not isinstance(self.compressor, Compressor):
            raise InvalidOption(
                f"the compressor of LocalSteps is {self.compressor!r}, which counts nothing: leave "
                "stats() out, or give LocalSteps a method of Compression that sends gradients"
            )
        return self.compressor.stats()

    def _state_of_compressor(self) -> Report | None:
        return self.compressor.state_dict() if isinstance(self.compressor, Compressor) else None

    def _load_compressor(self, state: State | None) -> None:
        has_state = isinstance(self.compressor, Compressor)
        if has_state != (state is not None):
            which = "lacks the state of a compressor" if has_state else "has that of another one"
            raise InvalidOption(
                f"the compressor of LocalSteps is {self.compressor!r}, but the state to load "
                f"{which}: give LocalSteps the compression of the run that saved the state"
            )
        if state is not None:
            self.compressor.load_state_dict(state)


def check_local(configuration: Configuration) -> None:
    """Raise InvalidOption if ``LocalSteps`` does not work with a compressor's configuration."""
    memory = configuration.memory
    refuse_hiding(configuration.rule, "local steps send between passes")
    if memory.finishes and getattr(memory, "momentum", True):
        raise InvalidOption(
            f"memory {memory.id!r} computes an optimizer's updates from gradients, but "
            "LocalSteps sends changes of parameters, which it would multiply: use a method "
            "with error feedback, without optimizer=; dgc has it with momentum=0.0"
        )
    if not configuration.rollback:
        raise InvalidOption(
            "rollback is False, but LocalSteps repeats a failed exchange, whose entries "
            "would then be in the residual already: leave rollback=False out"
        )


def refuse_unfrozen(what: str) -> None:
    raise InvalidOption(
        f"{what} was frozen when LocalSteps was made, and is trained now: it is not exchanged, so "
        "its values would differ between ranks; make LocalSteps while it is unfrozen and freeze "
        "it afterwards, or make another LocalSteps now"
    )
