"""``Compression.auto`` and ``Compression.nothing`` for all frontends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from hvd_sparse.composition import PLANNED, refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.methods.builder import Builder, add_codec, density_for
from hvd_sparse.plan.policy import FP16, WAYS, Fallback, Trial
from hvd_sparse.types import Optimizer, Option, Params, Value

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
