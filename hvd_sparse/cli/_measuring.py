"""Measuring the ranks that a command was launched on."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from typing import Any

from hvd_sparse.autotune.costmodel.simulation import exchanges
from hvd_sparse.autotune.measured_costs import Measured
from hvd_sparse.autotune.probe import DENSITIES, NUMELS, SUBMITTED_BYTES, probe
from hvd_sparse.autotune.submissions import HANDED
from hvd_sparse.collectives.topology import Placement, in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import resolve_engine
from hvd_sparse.errors import NotInstalled

SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Where a launcher says how many ranks it has started."""
TIMEOUT_S = 120.0
"""Of every wait: a rank that has died is not waited for longer."""

QUICK: dict[str, Any] = {
    "submitted_bytes": SUBMITTED_BYTES[:3],
    "numels": NUMELS[:2],
    "budget_s": 0.0,
}


def launched_ranks() -> int:
    """How many ranks ``horovodrun`` or ``mpirun`` started; 1 without them."""
    told = [os.environ[name] for name in SIZES if os.environ.get(name, "").isdigit()]
    return max(map(int, told), default=1)


def measure(method: str, *, quick: bool = False) -> tuple[Measured, Placement]:
    """Costs of the ranks that this command runs on, the same on all of them, and where they are.
    Collective.

    method : a selector that is told a density
    quick : few and small ones, which say little

    Every rank counts as a node where all are on one, or where nobody knows.
    """
    configurations = _configurations(method)
    collective, hvd, Users = _horovod()
    hvd.init()
    try:
        users = Users(HANDED) if Users is not None else None
        few = QUICK if quick else {}
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
    known = nodes is not None and len(set(nodes)) > 1
    return measured, Placement(rank, nodes) if known else in_nodes_of(1, rank, ranks)


def _configurations(method: str) -> dict[str, list[Configuration]]:
    """Of every exchange that fits and for which nodes do not matter, at two densities."""
    found: dict[str, list[Configuration]] = defaultdict(list)
    for density in DENSITIES:
        for id, configuration in exchanges(density, "index_value", method, 1).items():
            if not configuration.exchange.needs_nodes:
                found[id].append(replace(configuration, allow_dense=False))
    return found


def _horovod() -> tuple[Any, Any, Any]:
    """Horovod's collectives by whichever framework it was built for, its module, and what makes a
    ``handing.Users`` of so many tensors, where there is such a thing."""
    missing = []
    for name in ("torch", "tensorflow"):
        try:
            if name == "torch":
                from hvd_sparse.collectives.horovod_torch import HorovodTorchCollective as Found
                from hvd_sparse.collectives.horovod_torch import hvd
                from hvd_sparse.torch.handover import TorchUsers as Users
            else:
                from hvd_sparse.collectives.horovod_tensorflow import (  # type: ignore
                    HorovodTensorflowCollective as Found,
                )
                from hvd_sparse.collectives.horovod_tensorflow import hvd

                Users = None  # type: ignore
        except ImportError as error:
            missing.append(str(error))
            continue
        return Found(hvd.global_process_set), hvd, Users
    raise NotInstalled("measuring needs Horovod: " + "; ".join(missing))
