"""Densities at which the backward pass hides every layer's message, and the step with them."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The densities of all compressed layers, in the order of the backward pass.

    Attributes
    ----------
    layers : the compressed layers
    groups : number of each layer's message, from 0
    densities : of each layer, the highest at which its message is through before the layers of the
        next one are ready; the same for all layers of a message
    low : the least density allowed, for which the plan is made
    step_s, low_step_s : seconds of a step with these densities, and with ``low`` everywhere
    share, low_share : share of the compressed entries that is sent, with both
    """

    layers: tuple[Layer, ...]
    groups: tuple[int, ...]
    densities: tuple[float, ...]
    low: float
    step_s: float
    low_step_s: float
    share: float
    low_share: float

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able."""
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
    """Return LAGS's densities for the best plan at density ``low``, by allgather.

    ``autotune.costmodel.densities`` has the rule.

    Parameters
    ----------
    profile : the model's layers
    setting : ranks and costs
    low, high : densities in (0, 1] between which layers may differ
    method, codec : ids

    Raises
    ------
    InvalidOption
        If ``low`` is above ``high``, or the method takes no density.
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
