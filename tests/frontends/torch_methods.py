"""Worker, under mpirun: every method through PyTorch, against the numpy core over mpi4py on the
same gradients."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from _common import SPARSE_ONLY, Cases
from _integer_gradients import SHAPES, gradients_of
from _method_cases import BUILT, METHODS, STEPS, compressor_of, found, session_beside
from _torch_cases import digest_of, give_gradients, run_torch_cases
from _torch_laws import optimizer_without_motion
from torch import nn

from hvd_sparse.torch import Compression


def same_as_the_core(name: str) -> dict[str, Any]:
    parameters = {f"t{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(SHAPES)}
    compressor = compressor_of(Compression, name, parameters.items(), name=name, **SPARSE_ONLY)
    optimizer = optimizer_without_motion(parameters, compressor)
    session = session_beside(compressor)
    differences, applied = 0, []
    for step in range(STEPS):
        gradients = {
            key: g.astype(np.float32) for key, g in zip(parameters, gradients_of(hvd.rank(), step))
        }
        reduced = session.reduce(gradients)
        optimizer.zero_grad()
        give_gradients(
            {parameters[key]: torch.from_numpy(gradient) for key, gradient in gradients.items()}
        )
        optimizer.step()
        applied += [parameter.grad.clone() for parameter in parameters.values()]
        differences += sum(
            int((parameters[key].grad.numpy() != reduced[key]).sum()) for key in parameters
        )
    return found(compressor, differences, digest_of(applied))


if __name__ == "__main__":
    hvd.init()
    cases = Cases(dict.fromkeys([*METHODS, *BUILT], same_as_the_core))
    run_torch_cases(cases)
