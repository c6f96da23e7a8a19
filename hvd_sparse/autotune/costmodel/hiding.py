"""What every layer can send without anybody waiting for it, and what that does to the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_sparse.autotune.costmodel.densities import hiding_densities
from hvd_sparse.autotune.costmodel.instance import groups
from hvd_sparse.autotune.costmodel.network import Setting
from hvd_sparse.autotune.costmodel.predict import sparse_step
from hvd_sparse.autotune.costmodel.profile import Layer, Profile
from hvd_sparse.checks import check_density, count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.registry import CODECS, SELECTORS


@dataclass(frozen=True)
class Hiding:
    """Densities a layer, in the order of the backward pass.

    Attributes
    ----------
    layers : the compressed ones
    groups : the message that each travels in, counted from 0
    densities : the highest whose message is through before the next one's layers are ready; one a
        message
    low : the least density allowed, which the plan is made for
    step_s, low_step_s : of these densities, and of ``low`` everywhere; seconds
    share, low_share : part of the compressed entries that is sent, of both
    """

    layers: tuple[Layer, ...]
    groups: tuple[int, ...]
    densities: tuple[float, ...]
    low: float
    step_s: float
    low_step_s: float
    share: float
    low_share: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        each = zip(self.layers, self.groups, self.densities)
        layers = [
            {"name": x.name, "numel": x.numel, "message": group, "density": d}
            for x, group, d in each
        ]
        numbers = {
            key: getattr(self, key) for key in ("low", "step_s", "low_step_s", "share", "low_share")
        }
        return {**numbers, "layers": layers}


def hide(
    profile: Profile,
    setting: Setting,
    low: float,
    high: float,
    *,
    method: str = "ldte_bs",
    codec: str = "index_value",
) -> Hiding:
    """LAGS's densities for the best plan there is at ``low``, by allgather:
    ``autotune.costmodel.densities``.

    Parameters
    ----------
    low, high : densities in (0, 1], between which layers may differ
    method, codec : ids

    Raises
    ------
    InvalidOption   ``low`` above ``high``, or a method that is told no density
    """
    selector = SELECTORS.create(method, density=check_density(low, "low"))
    configuration = Configuration.create(
        selector=selector, codec=CODECS.resolve(codec), allow_dense=False
    )
    alone = sparse_step(profile, configuration, setting)
    found = hiding_densities(profile, configuration, setting, alone.plan, low, high)
    layers = profile.compressed.layers
    together = sparse_step(
        profile, configuration, setting, densities=found, strategy=lambda _: alone.plan
    )
    numbers = [
        number
        for number, (start, stop) in enumerate(groups(alone.plan))
        for _ in range(start, stop)
    ]
    numel = sum(layer.numel for layer in layers)
    sent, least = (
        sum(count_from_density(layer.numel, d) for layer, d in zip(layers, given)) / numel
        for given in (found, [low] * len(layers))
    )
    return Hiding(
        layers,
        tuple(numbers),
        tuple(found),
        low,
        together.step_s,
        alone.step_s,
        share=sent,
        low_share=least,
    )
