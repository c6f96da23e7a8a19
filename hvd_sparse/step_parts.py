"""The five parts of a compressor, and the selector and codec of one tensor in one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.density_rule import DensityRule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.memories.contract import Memory
from hvd_sparse.schedules.constant import Constant
from hvd_sparse.schedules.contract import Schedule
from hvd_sparse.schedules.learning_rate import LearningRate
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Pace, TensorSpec

MOST_DENSITIES = 1024
"""Number of densities whose parts are cached."""


class StepParts:
    """The selector and the codec that process one tensor in one step, set to its density (None if
    the selector takes no density).

    sends_accumulated : the sent values equal the accumulated values bit for bit
    row_body : identifier of the frame body in ``kernels.rows`` that compiled kernels write for this
        codec; 0 if they do not support the codec or the selector
    """

    def __init__(self, density: float | None, selector: Selector, codec: Codec) -> None:
        self.density, self.selector, self.codec = density, selector, codec
        self.is_exact = codec.is_exact
        self.sends_accumulated = codec.is_exact and not selector.changes_values
        self.row_body = 0 if selector.changes_values else codec.row_body


@dataclass(frozen=True)
class Parts:
    """The five parts of a compressor, and their selector and codec for the density of each step."""

    selector: Selector
    memory: Memory
    codec: Codec
    exchange: Exchange
    schedule: Schedule | None

    @cached_property
    def rule(self) -> DensityRule | None:
        told = (getattr(self.schedule, "value", None), getattr(self.selector, "density", None))
        return next((each for each in told if isinstance(each, DensityRule)), None)

    @property
    def hides(self) -> bool:
        """Whether the run measures the densities (``density="hiding"``)."""
        return self.rule is not None and self.rule.c_max is not None

    def settled(self, bound: DensityRule) -> tuple[Selector, Schedule | None]:
        selector, schedule = self.selector, self.schedule
        if isinstance(getattr(selector, "density", None), DensityRule):
            selector = replace(selector, density=bound)  # type: ignore[call-arg]
        if isinstance(getattr(schedule, "value", None), DensityRule):
            schedule = replace(schedule, value=bound)  # type: ignore[type-var, misc]
        return selector, schedule

    @property
    def follows_rate(self) -> bool:
        return isinstance(self.schedule, LearningRate)

    def at_step(
        self, step: int, spec: TensorSpec | None = None, pace: Pace | None = None
    ) -> StepParts:
        """Return the selector and the codec for a tensor that has completed ``step`` steps. Equal
        densities give the same object.

        spec : the tensor; None uses the mean density of all tensors
        pace : the tensor's learning rate; None uses the run's mean rate
        """
        if self.fixed_parts is not None:
            return self.fixed_parts
        schedule = self._schedule_of(spec)
        if schedule is None:
            return self.parts_at(None)
        if pace is not None and isinstance(schedule, LearningRate):
            return self.parts_at(schedule.density_at(pace))
        return self.parts_at(float(schedule.density(step)))

    def _schedule_of(self, spec: TensorSpec | None) -> Schedule | None:
        if self.schedule is None or self.rule is None:
            return self.schedule
        key = None if spec is None else spec.key
        made = self._schedules.get(key)
        if made is None:
            density = self.rule.mean if spec is None else self.rule.density_of(spec)
            if density is None:
                raise InvalidOption(
                    f"density is the rule {self.rule!r}, whose mean depends on the tensors: call "
                    "for_tensors(specs) first, as compressors do"
                )
            made = self._schedules[key] = self.schedule.at_density(density)
        return made

    def parts_at(self, density: float | None) -> StepParts:
        made = self._at_density.get(density)
        if made is None:
            selector, codec = self.selector, self.codec
            if density is not None:
                selector, codec = selector.at_density(density), codec.at_density(density)
            if len(self._at_density) >= MOST_DENSITIES:  # for example, a new density at every step
                self._at_density.clear()
            made = self._at_density[density] = StepParts(density, selector, codec)
        return made

    # These caches are not dataclass fields, so that ``==`` and ``describe`` ignore them.
    @cached_property
    def _at_density(self) -> dict[float | None, StepParts]:
        return {}

    @cached_property
    def _schedules(self) -> dict[str | None, Schedule]:
        return {}

    @cached_property
    def fixed_parts(self) -> StepParts | None:
        """The parts of all steps if all tensors have one constant density, or none; else None."""
        if self.schedule is None:
            return self.parts_at(None)
        if self.rule is not None or not isinstance(self.schedule, Constant):
            return None
        return self.parts_at(self.schedule.density(0))

    def density(
        self, step: int, spec: TensorSpec | None = None, pace: Pace | None = None
    ) -> float | None:
        return self.at_step(step, spec, pace).density
