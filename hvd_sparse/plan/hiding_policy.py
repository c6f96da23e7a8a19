"""Densities that are measured in the run: ``density="hiding"``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvd_sparse.errors import RankMismatch
from hvd_sparse.plan.first_steps import FirstSteps
from hvd_sparse.plan.hidden_densities import HiddenDensities, make_hidden
from hvd_sparse.plan.measurements import Samples, Told
from hvd_sparse.plan.measuring_policy import MeasuringPolicy
from hvd_sparse.plan.policy import Owner
from hvd_sparse.plan.route import Route
from hvd_sparse.step.step import Step


class HidingSteps(FirstSteps[HiddenDensities]):
    """The first steps, from which densities follow."""

    label, purpose, option = "hiding", "find the densities that hide", "density='hiding'"

    def _make(
        self, route: Route, told: Sequence[Told], samples: Sequence[Samples]
    ) -> HiddenDensities:
        rule = route.configuration.rule
        assert rule is not None and rule.c_max is not None
        step = self._step
        return make_hidden(route, step.specs, told, samples, step.buckets, rule.c_max)

    def _read(self, told: Told) -> HiddenDensities:
        return HiddenDensities.from_dict(told)


class HidingPolicy(MeasuringPolicy):
    """Measures the first steps and then sends as much of every layer as hides.

    Until then every tensor has the least density that is allowed.

    Parameters
    ----------
    step, name : of the compressor
    """

    timing = "the timing of messages for density='hiding'"
    departed = "their densities were measured: they are measured anew"

    def __init__(self, step: Step, name: str) -> None:
        super().__init__(step, HidingSteps(step, name))
        self._loaded: dict[str, float] | None = None

    @property
    def hiding(self) -> HiddenDensities | None:  # type: ignore[override]
        """Return what was measured and decided; None until it is."""
        found: HiddenDensities | None = self._planning.plan
        return found

    def _adopt(self, owner: Owner, decision: HiddenDensities) -> None:
        owner.settle_densities(decision.densities)

    def begin(self, owner: Owner, position: int | None) -> str:
        if self._loaded is not None and self._starts.is_between:
            self._take_loaded(owner)
        return super().begin(owner, position)

    def loaded(self, owner: Owner, tensors: Mapping[str, Any]) -> None:
        """Take the densities of a state, which all ranks load; measure anew where it has none."""
        told = {key: tensor.get("density") for key, tensor in tensors.items()}
        self._loaded = {key: float(density) for key, density in told.items() if density}
        owner.settle_densities(self._loaded)

    def _take_loaded(self, owner: Owner) -> None:
        """Begin with the densities that were loaded, if there are any.  Collective: a step
        begins."""
        mine, self._loaded = self._loaded, None
        if any(theirs != mine for theirs in self._tell_all(owner, "loaded", mine)):
            raise RankMismatch(
                "the states that ranks have loaded hold other densities: load those of one "
                "checkpoint on all ranks"
            )
        self._measure_anew(owner)
        if mine:
            owner.step.spans.remove(self._listener)
            self._planning.stop()

    def forget_world(self, owner: Owner) -> None:
        owner.settle_densities({})  # new workers know of none
        super().forget_world(owner)
