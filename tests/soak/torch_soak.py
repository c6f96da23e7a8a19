"""Worker of the soak test. Arguments: FOLDER FIRST_STEP STEPS STEPS_BETWEEN_CHECKS TOTAL_STEPS."""

import sys
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
from harness import report
from soak.plan import SHAPES, Plan, check_redistribution, check_step
from torch import nn

from hvd_sparse.state import checkpoint_file as checkpoint
from hvd_sparse.torch import Compression

SEED = 3


def main():
    folder = Path(sys.argv[1])
    start, count, between, total = map(int, sys.argv[2:6])
    hvd.init()
    torch.set_num_threads(1)
    rank, size, plan, scale = hvd.rank(), hvd.size(), Plan(SEED), [1.0]
    parameters = {key: nn.Parameter(torch.zeros(shape)) for key, shape in SHAPES.items()}
    compressor = Compression.topk(
        parameters.items(),
        density=0.1,
        name="soak",
        min_numel=1,
        allow_dense=False,
        schedule=plan.schedule(total),
        grad_scaler=lambda: scale[0],
        check_replicas_every=10,
        engine="numpy",
    )
    descent = torch.optim.SGD(parameters.values(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(
        descent, named_parameters=parameters.items(), compression=compressor
    )

    def residuals():
        tensors = compressor.state_dict()["tensors"]
        nothing = {key: np.zeros(int(np.prod(shape)), "f4") for key, shape in SHAPES.items()}
        kept = {key: each["arrays"]["residual"].numpy() for key, each in tensors.items()}
        return {**nothing, **kept}

    def gather(value):
        return hvd.allgather_object(value, name="books")

    if start:
        compressor.load(folder / str(start))
        states = checkpoint.read(folder / str(start))
        check_redistribution(states, gather(residuals()))

    def reduce(step):
        scale[0] = plan.scale(step)
        given = plan.gradients(step, rank, size)
        optimizer.zero_grad()
        sum((parameters[key] * torch.from_numpy(given[key])).sum() for key in SHAPES).backward()
        optimizer.step()
        result = {key: parameter.grad.numpy() for key, parameter in parameters.items()}
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.zero_()  # a step with NaN that nobody skips would spoil them
        return result

    checks = 0
    for step in range(start, start + count):
        is_checked = step % between == 0
        before = residuals() if is_checked else {}
        result = reduce(step)
        if is_checked:  # by every rank for all ranks, so that all end with the same error
            check_step(plan, step, *zip(*gather((before, residuals(), result))))
            checks += 1
    faults = sum(bool(plan.spoiled(step, size)) for step in range(start, start + count))
    compressor.save(folder / str(start + count))
    report(
        rank, {"checks": checks, "faults": faults, "skipped": compressor.stats()["nonfinite_steps"]}
    )
    hvd.barrier()


if __name__ == "__main__":
    main()
