"""``Compression.auto``, of all frontends."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.compatibility import PLANNED, refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.fallback import Fallback
from hvd_sparse.plan.policy import Policy
from hvd_sparse.plan.trial import WAYS, Trial
from hvd_sparse.schedules.learning_rate import LearningRate
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.untyped import GradScaler, Option, Params, ProcessSet, Value


class AutoMethod:
    """``Compression.auto``, of both frontends."""

    @classmethod
    def _create(
        cls,
        params: Params,
        configuration: Configuration,
        process_set: ProcessSet,
        grad_scaler: GradScaler,
        policy: Policy | None = None,
    ) -> Value:
        raise NotImplementedError

    @classmethod
    def _fallback(cls, trial: Trial) -> Policy:
        """Return the frontend's policy for a trial."""
        return Fallback(trial)

    @classmethod
    def auto(
        cls,
        params: Params,
        *,
        density: Density = 0.001,
        ways: Sequence[str] = WAYS,
        trial_steps: int = 5,
        review_every: int = 500,
        process_set: ProcessSet = None,
        grad_scaler: GradScaler = None,
        **options: Option,
    ) -> Value:
        """LDTE-BS where that is faster than dense float32 and float16 here, measured in the first
        steps; else these.

        ways : what is tried: "sparse", "dense", "fp16" (as ``hvd.Compression.fp16``); leave out
            what must not be
        trial_steps : measured, of each way, after two to warm up
        review_every : steps after which the choice is looked at again; 0 for never
        options : the common ones; the codec is "block16" unless told otherwise

        What was found, and why, is logged by rank 0, and is ``compressor.verdict``.
        """
        if options.pop("optimizer", None) is not None:
            raise InvalidOption(
                "auto cannot run dense steps while a memory does the optimizer's work: leave out "
                "optimizer=, or use ldte_bs"
            )
        options = {"codec": "block16", **options}
        configuration = Configuration.create(selector=LdteBs(density), **options)
        if configuration.memory.finishes:
            raise InvalidOption(
                f"auto cannot step aside for memory {configuration.memory!r}, which is the "
                "optimizer's momentum"
            )
        if configuration.groups == PLANNED:
            raise InvalidOption(
                "groups is 'planned', and auto measures its ways in the same steps: leave one of "
                "them out, or give auto the "
                "groups that a planned run has logged"
            )
        if isinstance(configuration.schedule, LearningRate):
            raise InvalidOption(
                "schedule is 'learning_rate', which follows an optimizer that is handed over, and "
                "auto takes none: leave it out, or use ldte_bs"
            )
        refuse_hiding(configuration.rule, "auto measures its ways in the same steps")
        trial = Trial(ways, trial_steps, review_every)
        return cls._create(params, configuration, process_set, grad_scaler, cls._fallback(trial))
