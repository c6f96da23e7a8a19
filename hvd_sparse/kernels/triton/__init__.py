"""Engine ``triton``: the kernels of ``kernels.contract`` on GPUs. Triton compiles the passes that
add the gradient, and the sums of entries; all other kernels are those of engine ``torch``. This
file makes the arguments of the functions in ``device_code``, allocates their results, and launches
them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
import triton
import triton.language as tl

from hvd_sparse.kernels.contract import Kernels, Moments, Sums, Surplus, Taking
from hvd_sparse.kernels.torch import TorchKernels
from hvd_sparse.kernels.torch.passes import Answers, Pass
from hvd_sparse.kernels.torch.vector import Vector, numpy_dtype, rounded, tensor_of, upload
from hvd_sparse.kernels.triton import device_code
from hvd_sparse.types import Selection

Kind = tuple[torch.device, torch.dtype]
IS_INTERPRETED = not isinstance(device_code.take_blocks, triton.JITFunction)
"""Whether Triton's interpreter, which accepts vectors on the CPU, replaces the GPU."""
BLOCK = 4096
"""Number of a tensor's entries per program, in kernels that take entries and that write sums."""
COLUMNS = 8
"""Number of columns of a table with a row per tensor. The columns are: number of the tensor's first
program; addresses of gradient, residual and result; number of entries; start and length of the
tensor's part of the lists; number of programs."""
CHUNK = 1024
"""Number of counts that a program adds up at once, and of surplus entries that it puts back."""
OPTIONS = {"enable_fp_fusion": False, "num_stages": 1}
"""Triton must neither fuse multiply-adds, nor move loads before stores on which the loads may
depend."""


HEAD = 5
"""Number of float64 results for each tensor: the count of entries that reached the aim's threshold,
the count of entries that are not finite, and for moments the sum of magnitudes, the largest finite
magnitude and the count of non-zeros."""
ALIGNED = 16
"""Alignment of every piece of memory in bytes, so that Triton compiles a single variant."""


class Sum(NamedTuple):
    out: torch.Tensor
    parts: Sequence[Selection]
    factor: float


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    if device.type == "cpu":  # Triton's interpreter
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[object] = torch.get_device_module(device).device(
        device
    )
    return context


def take(passes: Sequence[Pass], block: int) -> Answers:
    """Run several passes (``kernels.torch.passes``) on a device, in three launches. All passes have
    one dtype, and at least one of them has entries."""
    first = passes[0].out
    device, dtype = first.device, first.dtype
    table = _table(passes, block)
    tensors, programs = len(passes), int(table[-1, 0] + table[-1, 7])
    room = int(table[-1, 5] + table[-1, 6])
    words, head, ordered_values, ordered_places = _room_for(tensors, room, dtype, device)

    def empty(size: int, kind: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=kind, device=device)

    places, values = empty(room, torch.int32), empty(room, dtype)
    counts, nonfinite, nonzeros = (empty(programs, torch.int32) for _ in range(3))
    bases, starts = (empty(programs, torch.int64) for _ in range(2))
    sums, most = (empty(programs, torch.float64) for _ in range(2))
    # The number of each program's tensor, and a counter for each tensor.
    numbers, counters = np.arange(tensors, dtype=np.int32), np.zeros(tensors, np.int64)
    given = (table, np.repeat(numbers, table[:, 7]), _cuts(passes), counters)
    rows, owners, cuts, given_out = _uploaded(given, device)
    kind = _kind(dtype)
    is_aligned = not bool((table[:, 1:4] % ALIGNED).any() or (table[:, 4] % 4).any())
    looks = any(each.aim is None for each in passes)
    with on(device):
        device_code.take_blocks[(programs,)](
            rows, owners, cuts, given_out, places, values, counts, bases, sums, nonfinite, most,
            nonzeros, DTYPE=kind, BLOCK=block, IS_ALIGNED=is_aligned, HAS_MOMENTS=looks,
            num_warps=8, **OPTIONS
        )  # fmt: skip
        device_code.add_up_counts[(tensors,)](
            rows, counts, sums, nonfinite, most, nonzeros, starts, head,
            HAS_MOMENTS=looks, CHUNK=CHUNK, **OPTIONS
        )  # fmt: skip
        device_code.order_taken[(programs,)](
            rows, owners, places, values, counts, bases, starts, head,
            ordered_places, ordered_values, DTYPE=kind, CHUNK=max(32, block // 64), num_warps=1,
            **OPTIONS
        )  # fmt: skip
    return Answers(words.view(torch.int32), lambda read: _read(read.view(np.uint8), passes))


def assemble(
    sums: Sequence[Sum], surplus: Sequence[tuple[torch.Tensor, Selection]], block: int
) -> None:
    """Write the sums of a bucket in one launch. In the same launch, write the surplus (entries that
    were taken but not sent) back into its vectors. All vectors have one dtype and device, and at
    least one sum has entries."""
    outs = [each.out for each in sums]
    device, dtype = outs[0].device, outs[0].dtype
    parts = max(len(each.parts) for each in sums)
    table = np.zeros((len(sums), 3), np.int64)
    programs = [-(-out.numel() // block) for out in outs]
    table[1:, 0] = np.cumsum(programs)[:-1]
    table[:, 1] = [out.data_ptr() for out in outs]
    table[:, 2] = [out.numel() for out in outs]
    owners = np.repeat(np.arange(len(sums), dtype=np.int32), programs)
    # Tensors with fewer parts than others get empty parts.
    counts = np.zeros((len(sums), parts + 1), np.int64)
    for row, each in zip(counts, sums):
        row[1 : 1 + len(each.parts)] = [part.count for part in each.parts]
    ranges = np.cumsum(counts).reshape(counts.shape)
    indices = np.concatenate([part.indices for each in sums for part in each.parts])
    addresses, kept_back = _addressed(surplus, numpy_dtype(outs[0]))
    values = [
        part.values * part.values.dtype.type(each.factor) for each in sums for part in each.parts
    ]
    given = (table, ranges, owners, indices, np.concatenate(values), addresses, kept_back)
    rows, places, numbers, words, scaled, targets, entries = _uploaded(given, device)
    blocks = sum(programs)
    is_aligned = not bool((table[:, 1] % ALIGNED).any() or (table[:, 2] % 4).any())
    with on(device):
        device_code.assemble_blocks[(blocks - (-addresses.size // CHUNK),)](
            rows, numbers, places, words, scaled, parts,
            int(counts.max()).bit_length(),  # halvings of the longest range
            blocks, targets, entries, addresses.size,
            DTYPE=_kind(dtype), BLOCK=block, LANES=max(2, 1 << (2 * parts - 1).bit_length()),
            IS_ALIGNED=is_aligned, CHUNK=128, BACK=CHUNK, **OPTIONS
        )  # fmt: skip


def _addressed(
    surplus: Sequence[tuple[torch.Tensor, Selection]], dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    addresses, values = [np.empty(0, np.int64)], [np.empty(0, dtype)]
    for vector, entries in surplus:
        addresses.append(vector.data_ptr() + entries.indices.astype(np.int64) * dtype.itemsize)
        values.append(entries.values)
    return np.concatenate(addresses), np.concatenate(values)


def _table(passes: Sequence[Pass], block: int) -> np.ndarray:
    table = np.zeros((len(passes), COLUMNS), np.int64)
    program = place = 0
    for row, one in zip(table, passes):
        programs = -(-one.out.numel() // block)
        addresses = (vector.data_ptr() for vector in (one.gradient, one.residual, one.out))
        row[:] = program, *addresses, one.out.numel(), place, one.room, programs
        program, place = program + programs, place + one.room
    return table


def _uploaded(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return flat, padded copies of the arrays on the device, with signed dtypes. All arrays are
    copied in one transfer."""
    wholes = [_whole(each.nbytes) for each in arrays]
    together = np.zeros(sum(wholes), np.uint8)
    for start, each in zip(np.cumsum([0, *wholes]), arrays):
        together[start : start + each.nbytes] = np.ascontiguousarray(each).view(np.uint8).ravel()
    kinds = [getattr(torch, each.dtype.name.lstrip("u")) for each in arrays]
    return [piece.view(kind) for piece, kind in zip(upload(together, device).split(wholes), kinds)]


def _cuts(passes: Sequence[Pass]) -> np.ndarray:
    """Return each pass's threshold in the data's dtype, above 0. A pass that takes no entries
    (without an aim) has infinity, which no finite entry reaches."""
    dtype = numpy_dtype(passes[0].out)
    cuts = [
        np.inf if each.aim is None else rounded(each.out, each.aim.threshold) for each in passes
    ]
    least: np.ndarray = np.maximum(np.array(cuts, dtype), np.finfo(dtype).smallest_subnormal)
    return least


def _room_for(
    tensors: int, room: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return memory on the device for the results of all tensors, and three views of it: ``HEAD``
    float64 numbers per tensor, ``room`` values, and the ``room`` int32 indices of these values.
    Because it is one piece of memory, one copy brings the results to the host."""
    sizes = _sizes(tensors, room, dtype.itemsize)
    words = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    head, values, places = words.split(sizes)
    lists = values.view(dtype)[:room], places.view(torch.int32)[:room]
    return words, head.view(torch.float64), *lists


def _sizes(tensors: int, room: int, itemsize: int) -> list[int]:
    return [_whole(each) for each in (8 * HEAD * tensors, itemsize * room, 4 * room)]


def _whole(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


def _read(words: np.ndarray, passes: Sequence[Pass]) -> list[Taking | Moments]:
    dtype = numpy_dtype(passes[0].out)
    sizes = _sizes(len(passes), sum(each.room for each in passes), dtype.itemsize)
    head, values, places = np.split(words, np.cumsum(sizes)[:-1])
    values, places = values.view(dtype), places.view(np.uint32)
    numbers = head[: 8 * HEAD * len(passes)].view(np.float64).reshape(-1, HEAD).tolist()
    answers: list[Taking | Moments] = []
    start = 0
    for one, (count, nonfinite, abs_sum, most, nonzeros) in zip(passes, numbers):
        numel = one.out.numel()
        if one.aim is None:
            if nonfinite:  # the device returned the largest finite magnitude
                most = math.nan if math.isnan(abs_sum) else math.inf
            answers.append(Moments(abs_sum, most, int(nonzeros), numel))
            continue
        selection = None
        if count <= one.aim.capacity:
            here = slice(start, start + int(count))
            selection = Selection(places[here], values[here], numel)
        answers.append(Taking(int(nonfinite), selection))
        start += one.room
    return answers


def _kind(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


def has_gpu() -> bool:
    return IS_INTERPRETED or bool(torch.cuda.is_available())


class TritonKernels(TorchKernels):
    """Kernels that read the gradient and the residual once, and write the new residual once."""

    def __init__(self, host: Kernels, block: int = BLOCK) -> None:
        super().__init__(host)
        self._block = block

    def begin(self, passes: Sequence[Pass]) -> Answers:
        if not any(one.out.numel() for one in passes):
            return super().begin(passes)
        return take(passes, self._block)

    def assemble(self, out: Vector, parts: Sequence[Selection], factor: float = 1.0) -> None:
        self.assemble_together([(cast(np.ndarray, out), parts, factor)])

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        together: dict[Kind, list[Sum]] = {}
        for out, parts, factor in sums:
            tensor = tensor_of(out)
            if any(part.count for part in parts):
                kind = tensor.device, tensor.dtype
                together.setdefault(kind, []).append(Sum(tensor, parts, factor))
            else:
                super().assemble(out, parts, factor)
        beside: dict[Kind, list[tuple[torch.Tensor, Selection]]] = {kind: [] for kind in together}
        for vector, entries in surplus:
            tensor = tensor_of(vector)
            if (tensor.device, tensor.dtype) in beside:
                beside[tensor.device, tensor.dtype].append((tensor, entries))
            else:
                vector[entries.indices] = entries.values
        for kind, each in together.items():
            assemble(each, beside[kind], self._block)
