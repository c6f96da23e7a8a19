"""Policy of ``density="hiding"``: densities that are measured in the run."""

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
    """The first steps, from which the densities are computed."""

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
    """Policy that measures the first steps, then uses the largest densities that hide.

    Until then every tensor has the least density, 1 / c_max.

    Parameters
    ----------
    step : the compressor's step
    name : name of the compressor
    """

    timing = "the timing of messages for density='hiding'"
    departed = "their densities were measured: they are measured anew"

    def __init__(self, step: Step, name: str) -> None:
        super().__init__(step, HidingSteps(step, name))
        self._loaded: dict[str, float] | None = None

    @property
    def hiding(self) -> HiddenDensities | None:  # type: ignore[override]
        """The chosen densities and the measured costs; None before the decision."""
        found: HiddenDensities | None = self._planning.plan
        return found

    def _adopt(self, owner: Owner, decision: HiddenDensities) -> None:
        owner.settle_densities(decision.densities)

    def begin(self, owner: Owner, position: int | None) -> str:
        if self._loaded is not None and self._starts.is_between:
            self._take_loaded(owner)
        return super().begin(owner, position)

    def loaded(self, owner: Owner, tensors: Mapping[str, Any]) -> None:
        """Use the densities of a loaded state; measure again if it has none."""
        told = {key: tensor.get("density") for key, tensor in tensors.items()}
        self._loaded = {key: float(density) for key, density in told.items() if density}
        owner.settle_densities(self._loaded)

    def _take_loaded(self, owner: Owner) -> None:
        """Check that the loaded densities are the same on all ranks, and use them.  Collective."""
        mine, self._loaded = self._loaded, None
        if any(theirs != mine for theirs in self._tell_all(owner, "loaded", mine)):
            raise RankMismatch(
                "the states that ranks have loaded hold other densities: load the same checkpoint "
                "on all ranks"
            )
        self._measure_anew(owner)
        if mine:
            owner.step.spans.remove(self._listener)
            self._planning.stop()

    def forget_world(self, owner: Owner) -> None:
        owner.settle_densities({})  # new workers have none
        super().forget_world(owner)
