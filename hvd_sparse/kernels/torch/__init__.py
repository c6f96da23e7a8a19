"""Kernels of plain torch operations, on any device.  Contracts: ``kernels.contract``.

Vectors lie where their tensors do (``vector.DeviceVector``); what is selected comes to the host, by
one copy that waits once. Only operations whose bits every device agrees on are used: no fused
multiply-add, no sum by atomics, and no top-k where equal magnitudes could go either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.kernels.contract import (
    Kernels,
    Moments,
    Sums,
    Surplus,
    Tail,
)
from hvd_sparse.kernels.torch import statistics
from hvd_sparse.kernels.torch.passes import TorchPasses
from hvd_sparse.kernels.torch.taking import largest, reaching, rounded, take
from hvd_sparse.kernels.torch.vector import (
    DeviceVector,
    Vector,
    fetch,
    tensor_of,
    upload,
    upload_indices,
)
from hvd_sparse.types import Selection


class TorchKernels(TorchPasses):
    """Kernels of torch operations; lists and bytes, which are the host's, go to the host's kernels.

    Parameters
    ----------
    host : kernels for what lies on the host anyway
    """

    def __init__(self, host: Kernels) -> None:
        self._host = host
        self.count_blocks, self.join_blocks = host.count_blocks, host.join_blocks
        self.half_codes, self.half_values = host.half_codes, host.half_values
        self.brain_codes, self.brain_values = host.brain_codes, host.brain_values
        self.largest_magnitude, self.multiples = host.largest_magnitude, host.multiples
        self.sum_on_grid, self.level_codes = host.sum_on_grid, host.level_codes
        self.level_values = host.level_values
        self.pack_few, self.unpack_few = host.pack_few, host.unpack_few
        self.split_gaps, self.join_gaps = host.split_gaps, host.join_gaps
        self.bytes_from, self.put_bytes = host.bytes_from, host.put_bytes
        self.pack_unary, self.unpack_unary = host.pack_unary, host.unpack_unary
        self.split_thirds, self.join_thirds = host.split_thirds, host.join_thirds

    # -- statistics -------------------------------------------------------------------------------

    def moments(self, x: Vector) -> Moments:
        return statistics.moments(tensor_of(x))

    def mean_and_std(self, x: Vector) -> tuple[float, float]:
        return statistics.mean_and_std(tensor_of(x))

    def tail(self, x: Vector, threshold: float) -> Tail:
        return statistics.tail(tensor_of(x), threshold)

    def digit_counts(self, x: Vector, shift: int, prefix: int) -> np.ndarray:
        return statistics.digit_counts(tensor_of(x), shift, prefix)

    def chunk_norms(self, x: Vector, length: int) -> np.ndarray:
        return statistics.chunk_norms(tensor_of(x), length)

    def sample_magnitudes(self, x: Vector, start: int, stride: int) -> np.ndarray:
        return fetch(tensor_of(x)[start::stride].abs())

    # -- taking -----------------------------------------------------------------------------------

    def count_at_least(self, x: Vector, threshold: float) -> int:
        tensor = tensor_of(x)
        return int(fetch((tensor.abs() >= rounded(tensor, threshold)).sum()))

    def take_at_least(self, x: Vector, threshold: float) -> Selection:
        tensor = tensor_of(x)
        reaches = reaching(tensor, tensor.abs(), threshold)
        taken = take(tensor, reaches, int(fetch(reaches.sum()))).selection
        assert taken is not None
        return taken

    def count_and_take(
        self, x: Vector, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        tensor = tensor_of(x)
        taken = take(tensor, reaching(tensor, tensor.abs(), threshold), capacity)
        return taken.found, taken.selection

    def take_at_most(self, x: Vector, threshold: float, most: int) -> tuple[int, Selection]:
        count, taken = self.count_and_take(x, threshold, most)
        return count, self.take_largest(x, most) if taken is None else taken

    def take_largest(self, x: Vector, count: int) -> Selection:
        tensor = tensor_of(x)
        if count <= 0 or not tensor.numel():
            return Selection.empty(x.size, x.dtype)
        count = min(count, x.size)
        taken = take(tensor, largest(tensor, count), count).selection
        assert taken is not None
        return taken

    def take_indices(self, x: Vector, indices: np.ndarray) -> Selection:
        tensor = tensor_of(x)
        values = fetch(tensor[upload_indices(indices, tensor.device)])
        return Selection(indices, values, x.size)

    def take_bins(
        self, accumulated: Vector, gradient: Vector, length: int
    ) -> tuple[np.ndarray, Selection]:
        x = tensor_of(accumulated)
        if not x.numel():
            return np.empty(0, accumulated.dtype), Selection.empty(0, accumulated.dtype)
        maxima = statistics.chunks(x.abs(), length).amax(1)
        limits = maxima.repeat_interleave(length, output_size=maxima.numel() * length)[: x.numel()]
        reaches = (x + tensor_of(gradient)).abs() >= limits
        reaches &= (limits > 0) & (x != 0)
        count = int(fetch(reaches.sum()))
        taken = take(x, reaches, count).selection
        assert taken is not None
        return fetch(maxima), taken

    # -- lists ------------------------------------------------------------------------------------

    def trim(self, taken: Selection, count: int, out: Vector | None) -> tuple[Selection, float]:
        if not isinstance(out, DeviceVector):
            return self._host.trim(taken, count, out)
        kept, least = self._host.trim(taken, count, None)
        self.restore(out, taken.without(kept))
        return kept, least

    def restore(self, out: Vector, selection: Selection) -> None:
        out[selection.indices] = selection.values

    def clear(self, residual: Vector, indices: np.ndarray) -> None:
        residual[indices] = 0.0

    # -- the sum ----------------------------------------------------------------------------------

    def assemble(self, out: Vector, parts: Sequence[Selection], factor: float = 1.0) -> None:
        result = tensor_of(out).zero_()
        if not any(part.count for part in parts):
            return
        # Two copies for all ranks; then one rank after the other, as indices are unique in one.
        indices = upload_indices(np.concatenate([part.indices for part in parts]), result.device)
        values = np.concatenate([part.values for part in parts])
        values *= values.dtype.type(factor)
        counts = [part.count for part in parts]
        for places, entries in zip(
            indices.split(counts), upload(values, result.device).split(counts)
        ):
            result[places] = result[places] + entries

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        """Write the sums of a bucket's tensors, as ``assemble`` does each, and put back what is
        surplus."""
        for vector, entries in surplus:
            self.restore(vector, entries)
        for out, parts, factor in sums:
            self.assemble(out, parts, factor)

    def scatter_add(self, out: Vector, indices: np.ndarray, values: np.ndarray) -> None:
        result = tensor_of(out)
        places = upload_indices(indices, result.device)
        result[places] = result[places] + upload(values, result.device)
