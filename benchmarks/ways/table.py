"""The ways that are trained: a rule of the workers, and what is made of that which arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.ways import appliers
from benchmarks.ways import worker_rules as rules

MakeWorker = Callable[[int, int], rules.Worker]


@dataclass(frozen=True)
class Way:
    """A way to train with rare entries.

    Attributes
    ----------
    name : on the page
    worker : makes the workers' rule for one tensor, of their number and its entries
    applier : makes what is done with that which arrives
    """

    name: str
    worker: MakeWorker | None
    applier: Callable[[int], appliers.Plain]


def regularized(rule: Callable[..., rules.Worker], workers: int, numel: int) -> rules.Worker:
    """Return a rule whose entries RegTop-k chooses, with what it remembers of this tensor."""
    return rule(workers, numel, rules.Regularized())


def ways_of(optimizer: str, steps: int) -> dict[str, Way]:
    """Return the ways with an optimizer, "momentum" or "adamw", by id; dense is the first.

    Parameters
    ----------
    steps : of the training, of which 1-bit Adam's first quarter is dense
    """
    if optimizer == "momentum":
        ours, kept, bare = rules.MomentumCorrection, appliers.Momentum, appliers.Plain
        by_moments: MakeWorker = rules.MomentumByFirstMoments
        own = {
            "unmasked": Way("the memory without masking", rules.Unmasked, bare),
            "whole": Way("gradient / (1 - momentum) accumulated", rules.WholeMomentum, bare),
            "demo": Way("DeMo: decoupled momentum, signs", rules.Decoupled, bare),
        }
        name, ef21 = "`momentum_correction`", Way("EF21-SGDM", rules.Ef21, bare)
    else:
        ours, kept, bare = rules.AdamCorrection, appliers.Adam, appliers.Plain
        by_moments = rules.AdamByFirstMoments
        own = {
            "aware": Way(
                "Adam on what arrives, as that many steps", rules.ErrorFeedback, appliers.AwareOfAge
            ),
            "corrected": Way(
                "Adam on what arrives, rate by the achieved density",
                rules.ErrorFeedback,
                appliers.CorrectedByDensity,
            ),
            "frozen": Way(
                "1-bit Adam's frozen second moments, dense before",
                partial(rules.FrozenSquares, until=steps // 4),
                bare,
            ),
        }
        name = "`adam_correction`"
        ef21 = Way("EF21-SGDM", partial(rules.Ef21, scale=1.0), appliers.AdamOfSquares)
    return {
        "dense": Way("dense", None, kept),
        "ours": Way(name, ours, bare),
        "kept": Way(
            "plain error feedback, the optimizer on what arrives", rules.ErrorFeedback, kept
        ),
        "decay": Way(
            "the memory's residual decays by 0.95 a step", partial(ours, decay=0.95), bare
        ),
        "ef21": ef21,
        "scape": Way("SCAPE: entries chosen by first moments", by_moments, bare),
        "rtopk": Way(
            "rTop-k: drawn from the 4 k largest",
            partial(ours, choice=rules.drawn_from_largest),
            bare,
        ),
        "regtopk": Way("RegTop-k, mu 1", partial(regularized, ours), bare),
        **own,
    }
