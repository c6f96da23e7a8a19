"""The probe of the costs of the ranks on which a command was launched."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TypedDict

from hvd_sparse.autotune.costmodel.simulation import exchanges
from hvd_sparse.autotune.measured_costs import MeasuredCosts
from hvd_sparse.autotune.probe import DENSITIES, NUMELS, SUBMITTED_BYTES, probe
from hvd_sparse.autotune.submissions import SUBMITTED, Users
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import Placement, in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.errors import NotInstalled

SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Settings in which launchers pass the number of ranks that they have started."""
TIMEOUT_S = 120.0
"""Seconds that one wait may take, as for a rank that has died."""


class Effort(TypedDict, total=False):
    """Options of ``probe`` that bound its work."""

    submitted_bytes: Sequence[int]
    numels: Sequence[int]
    budget_s: float


Loaded = tuple[Collective, ModuleType, "Callable[[int], Users] | None"]
"""Horovod's collectives, its module, and a function that makes ``submissions.Users`` of a number of
tensors, where there is one."""
QUICK: Effort = {
    "submitted_bytes": SUBMITTED_BYTES[:3],
    "numels": NUMELS[:2],
    "budget_s": 0.0,
}


def launched_ranks() -> int:
    """Return the number of ranks that ``horovodrun`` or ``mpirun`` started; 1 without them."""
    told = [os.environ[name] for name in SIZES if os.environ.get(name, "").isdigit()]
    return max(map(int, told), default=1)


def measure(method: str, *, quick: bool = False) -> tuple[MeasuredCosts, Placement]:
    """Return the costs of the launched ranks, and the node of every rank.  Collective.

    The costs are the same on all ranks.  Every rank counts as a node where all are on one node, or
    where that is unknown.

    Parameters
    ----------
    method : id of a selector that takes a density
    quick : measure few and small messages, which say little

    Raises
    ------
    NotInstalled
        If Horovod is not installed for any framework.
    InvalidOption
        If there is one rank alone.
    """
    configurations = _configurations(method)
    collective, hvd, make_users = _horovod()
    hvd.init()
    try:
        users = make_users(SUBMITTED) if make_users is not None else None
        few: Effort = QUICK if quick else {}
        measured = probe(
            collective,
            configurations,
            resolve_engine(None),
            timeout_s=TIMEOUT_S,
            users=users,
            **few,
        )
        nodes, rank, ranks = collective.nodes, collective.rank, collective.world_size
    finally:
        hvd.shutdown()
    if nodes is not None and len(set(nodes)) > 1:
        return measured, Placement(rank, nodes)
    return measured, in_nodes_of(1, rank, ranks)


def _configurations(method: str) -> dict[str, list[Configuration]]:
    """Return configurations at two densities, of every exchange that fits and needs no nodes."""
    found: dict[str, list[Configuration]] = defaultdict(list)
    for density in DENSITIES:
        for id, configuration in exchanges(density, "index_value", method, 1).items():
            if not configuration.exchange.needs_nodes:
                found[id].append(replace(configuration, allow_dense=False))
    return found


def _horovod() -> Loaded:
    """Load Horovod for whichever framework it was built for."""
    missing = []
    for load in (_torch, _tensorflow):
        try:
            return load()
        except ImportError as error:
            missing.append(str(error))
    raise NotInstalled("measuring needs Horovod: " + "; ".join(missing))


def _torch() -> Loaded:
    from hvd_sparse.collectives.horovod_torch import HorovodTorchCollective, hvd
    from hvd_sparse.torch.handover import TorchUsers

    return HorovodTorchCollective(hvd.global_process_set), hvd, TorchUsers


def _tensorflow() -> Loaded:
    from hvd_sparse.collectives.horovod_tensorflow import HorovodTensorflowCollective, hvd

    return HorovodTensorflowCollective(hvd.global_process_set), hvd, None
