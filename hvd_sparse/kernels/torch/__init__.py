"""Engine ``torch``: the kernels of ``kernels.contract``, made of ordinary PyTorch operations, on
any device.

Vectors stay on their device (``vector.DeviceVector``). The selected entries of a whole bucket are
copied to the host together, with one wait. Only operations that give the same bits on all devices
are used: no fused multiply-add, no sum by atomics, and no top-k, whose choice among equal
magnitudes is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from hvd_sparse.kernels.contract import Aim, Kernels, Moments, Sums, Surplus, Tail, Taking
from hvd_sparse.kernels.optimizers import Direction, Momentum, NewtonSchulz, iterated, operands
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.kernels.torch import passes
from hvd_sparse.kernels.torch.passes import Answers, Coming, Pass, joined, largest, take
from hvd_sparse.kernels.torch.vector import (
    DeviceVector,
    Vector,
    fetch,
    reaching,
    rounded,
    tensor_of,
    upload,
    upload_indices,
)
from hvd_sparse.types import Selection

Kernel = Callable[..., object]


def _all_of(x: torch.Tensor, mask: torch.Tensor, count: int) -> Selection:
    _, taken = take(x, mask, count)
    assert taken is not None
    return taken


def _like(x: Vector, tensor: torch.Tensor) -> np.ndarray:
    return cast(np.ndarray, DeviceVector(tensor) if isinstance(x, DeviceVector) else tensor.numpy())


class TorchKernels(Kernels):
    """Kernels of torch operations. Lists of taken entries are on the host; ``host``, the kernels of
    the host's engine, trim and encode them."""

    _library = torch
    _root = staticmethod(passes.root)  # type: ignore[assignment]

    def __init__(self, host: Kernels) -> None:
        self._host = host
        for name in vars(Packers):
            if not name.startswith("_"):
                setattr(self, name, getattr(host, name))

    # -- statistics -------------------------------------------------------------------------------

    def moments(self, x: Vector) -> Moments:
        return passes.moments_in(fetch(passes.pending_moments(tensor_of(x))), x.size)

    def mean_and_std(self, x: Vector) -> tuple[float, float]:
        if not x.size:
            return 0.0, 0.0
        wide = tensor_of(x).to(torch.float64)
        centre = wide.mean()
        mean, squares = fetch(torch.stack([centre, (wide - centre).square().sum()])).tolist()
        return mean, math.sqrt(squares / (x.size - 1)) if x.size > 1 else 0.0

    def tail(self, x: Vector, threshold: float) -> Tail:
        tensor = tensor_of(x)
        magnitudes = tensor.abs()
        above = reaching(tensor, magnitudes, threshold)
        excesses = magnitudes.to(torch.float64) - rounded(tensor, threshold)
        nothing = torch.zeros_like(excesses)
        count = above.sum().to(torch.float64)
        mean = torch.where(above, excesses, nothing).sum() / count
        variance = torch.where(above, (excesses - mean).square(), nothing).sum() / count
        has_log = above & (excesses > 0)
        logs = torch.where(has_log, excesses, torch.ones_like(excesses)).log().sum()
        log_count = has_log.sum().to(torch.float64)
        found = fetch(torch.stack([count, mean, variance, logs, log_count])).tolist()
        number, centre, spread, log_sum, logged = found
        if not number:
            return Tail(0, 0.0, 0.0, 0.0)
        return Tail(int(number), centre, spread, log_sum / logged if logged else 0.0)

    def digit_counts(self, x: Vector, shift: int, prefix: int) -> np.ndarray:
        tensor = tensor_of(x)
        pattern = torch.int64 if tensor.dtype == torch.float64 else torch.int32
        bits = tensor.view(pattern) & torch.iinfo(pattern).max
        has_prefix = torch.ones_like(bits)
        if 8 * x.itemsize - shift - 8:
            has_prefix = ((bits >> (shift + 8)) == prefix).to(pattern)
        digits = ((bits >> shift) & 255).to(torch.int64)
        counts = torch.zeros(256, dtype=torch.int64, device=tensor.device)
        return fetch(counts.scatter_add_(0, digits, has_prefix.to(torch.int64)))

    def chunk_norms(self, x: Vector, length: int) -> np.ndarray:
        tensor = tensor_of(x)
        wide = tensor.abs().to(torch.float64)
        rows = torch.nn.functional.pad(wide, (0, -wide.numel() % length)).view(-1, length)
        return fetch(rows.sum(1).to(tensor.dtype))

    # -- taking -----------------------------------------------------------------------------------

    def take_at_least(self, x: Vector, threshold: float) -> Selection:
        tensor = tensor_of(x)
        reaches = reaching(tensor, tensor.abs(), threshold)
        return _all_of(tensor, reaches, int(fetch(reaches.sum())))

    def count_and_take(
        self, x: Vector, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        tensor = tensor_of(x)
        return take(tensor, reaching(tensor, tensor.abs(), threshold), capacity)

    def take_largest(self, x: Vector, count: int) -> Selection:
        tensor = tensor_of(x)
        if count <= 0 or not tensor.numel():
            return Selection.empty(x.size, x.dtype)
        count = min(count, x.size)
        return _all_of(tensor, largest(tensor, count), count)

    # -- passes -----------------------------------------------------------------------------------

    def accumulate(self, gradient: Vector, residual: Vector, out: Vector) -> Moments:
        return cast(Moments, self._run(gradient, residual, out, None))

    def accumulate_and_take(
        self,
        gradient: Vector,
        residual: Vector,
        out: Vector,
        aim: Aim,
        direction: Direction | None = None,
    ) -> Taking:
        if direction is not None:
            gradient = self.directed(gradient, direction)
        return cast(Taking, self._run(gradient, residual, out, aim))

    def _run(self, gradient: Vector, residual: Vector, out: Vector, aim: Aim | None) -> object:
        """Return the result of ``accumulate``, or, if there is an aim, of ``accumulate_and_take``.
        For vectors on a device, the returned object is a ``Coming``, which stands for the future
        result, because all passes of a bucket start together."""
        one = Pass(tensor_of(gradient), tensor_of(residual), tensor_of(out), aim)
        coming = Coming(one, self.begin)
        return coming if isinstance(out, DeviceVector) else coming.result()

    def begin(self, given: Sequence[Pass]) -> Answers:
        return joined([passes.accumulated(one) for one in given])

    def directed(self, gradient: Vector, direction: Direction) -> np.ndarray:
        vectors, numbers = operands(direction, gradient.dtype)
        tensors = [tensor_of(vector) for vector in vectors]
        found = self._directed(tensor_of(gradient), tensors, [float(number) for number in numbers])
        is_velocity = isinstance(direction, Momentum) and not direction.is_nesterov
        return vectors[1] if is_velocity else _like(gradient, found)

    def orthogonalized(self, x: Vector, step: NewtonSchulz) -> np.ndarray:
        given, axes = tensor_of(x).view(step.shape), (-2, -1)
        largest = given.abs().amax(axes, keepdim=True)
        matrices = given / torch.where(largest == 0, 1.0, largest)
        norm = torch.linalg.vector_norm(matrices, dim=axes, keepdim=True)
        matrices = matrices / (norm + step.epsilon / largest)
        if given.dtype == torch.float32 and given.device.type != "cpu":
            matrices = matrices.bfloat16()  # as torch.optim.Muon does
        return _like(x, iterated(matrices, step).to(given.dtype).contiguous().view(-1))

    # -- lists ------------------------------------------------------------------------------------

    def trim(self, taken: Selection, count: int, out: Vector | None) -> tuple[Selection, float]:
        if not isinstance(out, DeviceVector):
            return self._host.trim(taken, count, out)
        kept, least = self._host.trim(taken, count, None)
        left = taken.without(kept)
        out[left.indices] = left.values
        return kept, least

    # -- the sum ----------------------------------------------------------------------------------

    def assemble(self, out: Vector, parts: Sequence[Selection], factor: float = 1.0) -> None:
        result = tensor_of(out).zero_()
        if not any(part.count for part in parts):
            return
        # Copy all parts together, but add one by one: indices are unique only within a part.
        indices = upload_indices(np.concatenate([part.indices for part in parts]), result.device)
        values = np.concatenate([part.values for part in parts])
        values *= values.dtype.type(factor)
        counts = [part.count for part in parts]
        for places, entries in zip(
            indices.split(counts), upload(values, result.device).split(counts)
        ):
            result[places] = result[places] + entries


class KernelsByPlace:
    """Kernels of two engines: calls with a vector on a device go to ``device``, others to
    ``host``."""

    def __init__(self, host: Kernels, device: Kernels) -> None:
        self._host, self._device = host, device
        self.most_in_row = host.most_in_row

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        for kernels, is_device in ((self._host, False), (self._device, True)):
            there = [each for each in sums if isinstance(each[0], np.ndarray) is not is_device]
            back = [each for each in surplus if isinstance(each[0], np.ndarray) is not is_device]
            if there or back:
                kernels.assemble_together(there, back)

    def __getattr__(self, name: str) -> Kernel:
        on_host: Kernel = getattr(self._host, name)
        on_device: Kernel = getattr(self._device, name)

        def kernel(*values: object, **named: object) -> object:
            is_on_device = any(type(value) is DeviceVector for value in (*values, *named.values()))
            return (on_device if is_on_device else on_host)(*values, **named)

        setattr(self, name, kernel)
        return kernel
