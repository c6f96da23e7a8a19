"""Worker, under mpirun: what PyTorch's compressor hands to the collective, and what the numpy core
over mpi4py does."""

from __future__ import annotations

import base64
from collections import defaultdict
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from _torch_bytes_cases import OPTIONS, SHAPES, STEPS, gradients_of
from _torch_cases import give_gradients
from _torch_laws import optimizer_without_motion
from harness import report
from torch import nn

from hvd_sparse.collectives.horovod_torch import HorovodTorchCollective
from hvd_sparse.step.session import Session
from hvd_sparse.torch import Compression

Sent = dict[str, list[str]]


def capture(collective: type) -> Sent:
    """From now on, note the bytes of every allgather by its name, handshakes aside."""
    sent: Sent = defaultdict(list)
    original = collective.allgather

    def allgather(self: Any, array: np.ndarray, name: str) -> Any:
        if ".handshake." not in name:
            sent[name].append(base64.b64encode(array.tobytes()).decode())
        return original(self, array, name)

    collective.allgather = allgather  # type: ignore[attr-defined]
    return sent


def send_by_horovod(name: str) -> tuple[Any, dict[str, Any]]:
    parameters = {
        key: nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)))
        for key, (shape, dtype) in SHAPES.items()
    }
    compressor = getattr(Compression, name)(parameters.items(), name=name, **OPTIONS)
    optimizer = optimizer_without_motion(parameters, compressor)
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients = {key: torch.from_numpy(g) for key, g in gradients_of(hvd.rank(), step).items()}
        give_gradients({parameters[key]: gradient for key, gradient in gradients.items()})
        optimizer.step()
    residuals = {
        key: base64.b64encode(state["arrays"]["residual"].numpy().tobytes()).decode()
        for key, state in compressor.state_dict()["tensors"].items()
    }
    applied = {
        key: parameter.grad.double().flatten()[:50].tolist()
        for key, parameter in parameters.items()
    }
    compressor.close()
    return compressor, {"residuals": residuals, "applied": applied}


def send_by_mpi(compressor: Any, collective: Any) -> dict[str, Any]:
    step = compressor.step
    kernels = step.pipeline.kernels
    session = Session(
        compressor.configuration, step.specs, collective, buckets=step.buckets, kernels=kernels
    )
    for number in range(STEPS):
        reduced = session.reduce(gradients_of(hvd.rank(), number))
    return {key: array.astype(np.float64).ravel()[:50].tolist() for key, array in reduced.items()}


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    from hvd_sparse.collectives.mpi import MpiCollective  # MPI is Horovod's to initialize

    by_horovod, by_mpi = capture(HorovodTorchCollective), capture(MpiCollective)
    result: dict[str, Any] = {"horovod": by_horovod, "mpi": by_mpi}
    for method in ("topk", "ldte_bs"):
        compressor, result[method] = send_by_horovod(method)
        result[method]["applied_by_mpi"] = send_by_mpi(compressor, MpiCollective())
        result[method]["buckets"] = compressor.step.buckets
    report(hvd.rank(), result)
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
