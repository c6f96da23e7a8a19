"""Simulation of every exchange on any number of ranks: predicted step and scaling efficiency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hvd_sparse.autotune.costmodel.costs import Work
from hvd_sparse.autotune.costmodel.network import MeasuredNetwork, Network, Setting
from hvd_sparse.autotune.costmodel.predict import Prediction, dense_step, sparse_step
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import Density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import CODECS, EXCHANGES, SELECTORS
from hvd_sparse.types import TensorSpec

WORLD_SIZES = tuple(2**power for power in range(1, 13))
"""Numbers of ranks: 2 to 4,096."""


@dataclass(frozen=True)
class Point:
    """The predicted step of one method on one network.

    Attributes
    ----------
    network : its name
    ranks : number of ranks
    method : "dense", "fp16", or the id of an exchange
    prediction : of a step
    efficiency : seconds of a step without communication and compression, over those of the step
    """

    network: str
    ranks: int
    method: str
    prediction: Prediction
    efficiency: float

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able, with the number of groups in the place of the plan."""
        described = self.prediction.to_dict()
        del described["plan"]
        described["groups"] = len(self.prediction.plan)
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
    density: Density,
    codec: str | Mapping[str, object] | Codec = "index_value",
    method: str = "ldte_bs",
    world_sizes: Iterable[int] = WORLD_SIZES,
) -> Iterator[Point]:
    """Predict dense, fp16 and every exchange that fits, each with its best plan, on every network.

    Every rank has the same batch, however many ranks there are.  Where a compressor would go dense
    by itself, its step is that of dense.  The two-level exchange is left out where no node has
    several ranks, or there is one node only.

    Parameters
    ----------
    profile : the model's layers
    networks : by name
    work : costs of computing
    density : in (0, 1], or by name
    codec : id, id with options, or codec
    method : id of the selector
    world_sizes : numbers of ranks

    Returns
    -------
    An iterator of points, network by network, number of ranks by number of ranks

    Notes
    -----
    Cost: some tens of milliseconds a network and number of ranks, for a hundred layers.
    """
    alone_s = profile.other_s + profile.backward_s
    for name, network in networks.items():
        contenders = exchanges(density, codec, method, network.ranks_per_node, profile.specs)
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
    """Tell whether there are several nodes, and several ranks on some of them."""
    return 1 < setting.placement.node_count < setting.placement.world_size


def exchanges(
    density: Density,
    codec: str | Mapping[str, object] | Codec,
    method: str,
    ranks_per_node: int,
    specs: Sequence[TensorSpec] = (),
) -> dict[str, Configuration]:
    """Return a configuration for every exchange that fits the other parts, by id.

    ``auto`` is left out, as it is one of the others.

    Parameters
    ----------
    density : in (0, 1], or by name
    codec : id, id with options, or codec
    method : id of the selector
    ranks_per_node : for exchanges of two levels
    specs : the tensors, for densities by name

    Raises
    ------
    UnknownName
        If the codec or the method is not registered.
    """
    selector, codec = SELECTORS.create(method, density=density), CODECS.resolve(codec)
    found = {}
    for id in EXCHANGES:
        exchange: str | dict[str, object] = (
            {"id": id, "ranks_per_node": ranks_per_node} if EXCHANGES.get(id).sums_first else id
        )
        try:
            configuration = Configuration.create(selector=selector, codec=codec, exchange=exchange)
            configuration = configuration.for_tensors(specs)
        except InvalidOption:
            continue
        if id != "auto":
            found[id] = configuration
    return found
