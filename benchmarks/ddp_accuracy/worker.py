"""One rank: all trainings of one method.  Started by ``benchmarks.ddp_accuracy`` under torchrun.

The first seed searches the rate: from the middle of the ladder upwards and downwards, until the
best one has a worse one on both sides.  The other seeds train with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.ddp_accuracy.training import train
from hvd_sparse.ddp.ending import let_threads_finish

LADDER = tuple(0.0125 * 2**step for step in range(7))
FIRST = (2, 3, 4)
"""Where the ladder is tried at first."""


def search(loss_of: Callable[[float], float]) -> dict[float, float]:
    """Return the rates that were tried, with their losses.

    Parameters
    ----------
    loss_of : trains with a rate; returns the loss, which is to be small
    """
    tried = {LADDER[step]: loss_of(LADDER[step]) for step in FIRST}
    while True:
        place = LADDER.index(min(tried, key=lambda rate: tried[rate]))
        beside = [step for step in (place - 1, place + 1) if 0 <= step < len(LADDER)]
        new = [step for step in beside if LADDER[step] not in tried]
        if not new:
            return tried
        tried[LADDER[new[0]]] = loss_of(LADDER[new[0]])


def main() -> None:
    method, seeds, steps, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    let_threads_finish()  # also with one of PyTorch's own hooks
    tried = search(lambda rate: train(method, rate, 0, steps).loss)
    rate = min(tried, key=lambda each: tried[each])
    runs = [asdict(train(method, rate, seed, steps)) for seed in range(1, seeds + 1)]
    row = {"method": method, "rate": rate, "tried": sorted(tried), "runs": runs}
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(row), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
