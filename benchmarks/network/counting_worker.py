"""One rank of ``benchmarks.network.counting``: steps by every exchange, and what the interface
received in each.

OUTPUT STEPS RANKS_ON_A_HOST EXCHANGE...
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from benchmarks.network.cluster import interface_bytes
from benchmarks.network.counting import DENSITIES, NUMEL
from hvd_sparse.torch import Compression

WARMUP = 4
"""Steps before those that count: exchanges learn regions and thresholds in the first ones."""

SETTLE_S = 0.02
"""After a barrier, until the last acknowledgements are counted."""


def gradient(step: int) -> torch.Tensor:
    """Half of it is shared by all ranks, as mini-batches of one loss give it."""
    shared = np.random.default_rng([step]).laplace(size=NUMEL)
    own = np.random.default_rng([step, hvd.rank() + 1]).laplace(size=NUMEL)
    return torch.from_numpy((shared + own).astype(np.float32)).view(NUMEL, 1)


def count(exchange: str, density: float, steps: int, ranks_on_a_host: int) -> dict[str, Any]:
    """Median bytes that this host receives in a step, over the hosts: mean and maximum."""
    name = f"{exchange}.{density:g}"
    parameter = torch.nn.Parameter(torch.zeros(NUMEL, 1))
    described: Any = (
        {"id": exchange, "ranks_per_node": ranks_on_a_host}
        if exchange == "hierarchical"
        else exchange
    )
    asked = density or 1.0 / NUMEL  # one entry
    compression = Compression.topk(
        [(name, parameter)], density=asked, name=name, exchange=described, allow_dense=False
    )
    descent = torch.optim.SGD([parameter], lr=0.0)
    optimizer = hvd.DistributedOptimizer(
        descent, named_parameters=[(name, parameter)], compression=compression
    )
    received = []
    for step in range(WARMUP + steps):
        given = gradient(step)
        hvd.barrier()
        time.sleep(SETTLE_S)
        before = interface_bytes()[0]
        optimizer.zero_grad()
        parameter.backward(given)
        optimizer.synchronize()
        # As an optimizer does that applies it: a gradient that is thrown away is taken back.
        torch.autograd.graph.increment_version(parameter)
        hvd.barrier()
        time.sleep(SETTLE_S)
        received.append(interface_bytes()[0] - before)
    middle = float(np.median(received[WARMUP:]))
    of_hosts = hvd.allgather(
        torch.tensor([middle], dtype=torch.float64), name=f"{name}.all"
    ).numpy()
    compression.close()
    return {
        "exchange": exchange,
        "density": density,
        "received": float(of_hosts.mean()),
        "most": float(of_hosts.max()),
    }


def main() -> None:
    output, steps, ranks, *exchanges = sys.argv[1:]
    torch.set_num_threads(1)
    hvd.init()
    rows = [
        count(e, density, int(steps), int(ranks))
        for e in exchanges
        for density in (0.0, *DENSITIES)
    ]
    if hvd.rank() == 0:
        Path(output).write_text(json.dumps(rows), encoding="utf-8")
    hvd.barrier()


if __name__ == "__main__":
    main()
