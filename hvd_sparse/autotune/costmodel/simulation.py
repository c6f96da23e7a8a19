"""Step time and scaling efficiency of every exchange on any number of ranks, on paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hvd_sparse.autotune.costmodel.costs import Work
from hvd_sparse.autotune.costmodel.network import MeasuredNetwork, Network, Setting
from hvd_sparse.autotune.costmodel.predict import Prediction, dense_step, sparse_step
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import CODECS, EXCHANGES, SELECTORS

WORLD_SIZES = tuple(2**power for power in range(1, 13))
"""2 to 4,096."""


@dataclass(frozen=True)
class Point:
    """One method on one network.

    Attributes
    ----------
    network : its name
    ranks : how many
    method : "dense", "fp16", or the id of an exchange
    prediction : of a step
    efficiency : what a rank gets done, as part of what it would without communication or
        compression: a step's own computing over the step
    """

    network: str
    ranks: int
    method: str
    prediction: Prediction
    efficiency: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; of the plan the number of groups."""
        described = self.prediction.to_dict()
        described["groups"] = len(described.pop("plan"))
        return {
            "network": self.network,
            "ranks": self.ranks,
            "method": self.method,
            **described,
            "efficiency": self.efficiency,
        }


def simulate(
    profile: Profile,
    networks: Mapping[str, Network | MeasuredNetwork],
    work: Work,
    *,
    density: float,
    codec: Any = "index_value",
    method: str = "ldte_bs",
    world_sizes: Iterable[int] = WORLD_SIZES,
) -> Iterator[Point]:
    """Dense, fp16 and every exchange that fits, each with its best plan, on every network.

    Ranks bring the same batch each, however many they are.  Where a compressor would go dense by
    itself, it is as quick as dense.  The two-level exchange is left out where no node has several
    ranks, or there is one node only.

    Cost: some tens of milliseconds a network and number of ranks, for a hundred layers.
    """
    alone_s = profile.other_s + profile.backward_s
    for name, network in networks.items():
        contenders = exchanges(density, codec, method, network.ranks_per_node)
        for ranks in world_sizes:
            setting = Setting.on(network, ranks, work)
            predicted = {
                "dense": dense_step(profile, setting),
                "fp16": dense_step(profile, setting, 2),
            }
            for id, configuration in contenders.items():
                if not (configuration.exchange.sums_first and not divides(setting)):
                    predicted[id] = sparse_step(profile, configuration, setting)
            for id, prediction in predicted.items():
                yield Point(
                    name,
                    ranks,
                    id,
                    prediction,
                    alone_s / prediction.step_s if prediction.step_s else 1.0,
                )


def divides(setting: Setting) -> bool:
    """Whether there are several nodes, and several ranks on some."""
    return 1 < setting.placement.node_count < setting.placement.world_size


def exchanges(
    density: float, codec: Any, method: str, ranks_per_node: int
) -> dict[str, Configuration]:
    """A configuration for every exchange that these parts can be joined with, but for ``auto``,
    which is one of the others.

    Parts that are none are refused by their registries.
    """
    selector, codec = SELECTORS.create(method, density=density), CODECS.resolve(codec)
    found = {}
    for id in EXCHANGES:
        exchange: Any = (
            {"id": id, "ranks_per_node": ranks_per_node} if EXCHANGES.get(id).sums_first else id
        )
        try:
            configuration = Configuration.create(selector=selector, codec=codec, exchange=exchange)
        except InvalidOption:
            continue
        if id != "auto":
            found[id] = configuration
    return found
