from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

from hvd_sparse.checks import check_density, check_whole
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import Schedule


@SCHEDULES.register("piecewise")
@dataclass(frozen=True)
class Piecewise(Schedule):
    """Change the density at given steps, and keep it constant between them.

    Parameters
    ----------
    boundaries : ascending numbers of steps; from step ``boundaries[i]`` on, the density is
        ``densities[i + 1]``
    densities : one density more than boundaries, each in (0, 1]. If a tensor has its own density,
        all are multiplied by the factor that makes the last one this density, and limited to 1
    """

    boundaries: tuple[int, ...]
    densities: tuple[float, ...]

    def __post_init__(self) -> None:
        for option in ("boundaries", "densities"):
            given = getattr(self, option)
            if not isinstance(given, (list, tuple)):
                raise InvalidOption(f"{option} of Piecewise is {given!r}: give a list of numbers")
        for boundary in self.boundaries:
            check_whole(boundary, "a boundary of Piecewise", 1)
        densities = tuple(check_density(d, "a density of Piecewise") for d in self.densities)
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        object.__setattr__(self, "densities", densities)
        rising = all(a < b for a, b in zip((0, *self.boundaries), self.boundaries))
        if not rising or len(self.densities) != len(self.boundaries) + 1:
            raise InvalidOption(
                f"boundaries of Piecewise are {self.boundaries!r} and densities "
                f"{self.densities!r}: give ascending steps above 0, and one more density than "
                "boundaries"
            )

    def density(self, step: int) -> float:
        return self.densities[bisect.bisect_right(self.boundaries, step)]

    def at_density(self, density: float) -> Piecewise:
        last = self.densities[-1]
        return replace(self, densities=tuple(min(1.0, d / last * density) for d in self.densities))
