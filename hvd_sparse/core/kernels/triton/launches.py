"""Launches of the device's code: its arguments, and memory for them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl

from hvd_sparse.core.kernels.contract import Aim
from hvd_sparse.core.kernels.torch.taking import rounded
from hvd_sparse.core.kernels.torch.vector import upload
from hvd_sparse.core.kernels.triton import device_code
from hvd_sparse.types import Selection

COLUMNS = 8
"""Of a table: the tensor's first program, the addresses of gradient, residual and result, its
entries, the first place of its list, the list's room, and its programs."""
CHUNK = 1024
"""Entries that one program takes at a time from lists."""
OPTIONS = {"enable_fp_fusion": False, "num_stages": 1}
"""No multiply-add with a single rounding, and no load ahead of a store it may depend on."""


class Member(NamedTuple):
    """One tensor of a launch; the vectors are 1-D, contiguous and of one dtype and device."""

    gradient: torch.Tensor
    residual: torch.Tensor
    out: torch.Tensor
    aim: Aim

    @property
    def room(self) -> int:
        """Return the most entries that its list may have to hold."""
        return max(0, min(self.aim.capacity, int(self.out.numel())))


class Taken(NamedTuple):
    """The words of what was taken from all members, still on the device.

    Attributes
    ----------
    head : float64 [members, 3]: entries that reached the aim, sum of magnitudes, not finite
    values, places : the lists, one after the other, each as long as its room
    """

    head: torch.Tensor
    values: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return what makes a device the one that Triton launches on."""
    if device.type == "cpu":  # Triton's interpreter
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[object] = torch.get_device_module(device).device(
        device
    )
    return context


def take(members: Sequence[Member], block: int) -> Taken:
    """Add, look and take in all members: a memset and three launches, whatever their number."""
    first = members[0].out
    device, dtype = first.device, first.dtype
    table = _table(members, block)
    programs = int(table[-1, 0] + table[-1, 7])
    tensors, room = len(members), int(table[-1, 5] + table[-1, 6])
    taken = _room_for(tensors, room, dtype, device)
    per_entry = {"device": device, "dtype": dtype}
    places = torch.empty(room, dtype=torch.int32, device=device)
    values = torch.empty(room, **per_entry)
    counts, nonfinite = torch.empty(2, programs, dtype=torch.int32, device=device)
    bases, starts = torch.empty(2, programs, dtype=torch.int64, device=device)
    sums = torch.empty(programs, dtype=torch.float64, device=device)
    rows, cuts = upload(table, device), upload(_cuts(members), device)
    owners = upload(np.repeat(np.arange(tensors, dtype=np.int32), table[:, 7]), device)
    given_out = torch.zeros(tensors, dtype=torch.int64, device=device)
    kind = _kind(dtype)
    is_aligned = not bool((table[:, 1:4] % 16).any() or (table[:, 4] % 4).any())
    with on(device):
        device_code.take_blocks[(programs,)](
            rows, owners, cuts, given_out, places, values, counts, bases, sums, nonfinite,
            DTYPE=kind, BLOCK=block, IS_ALIGNED=is_aligned, num_warps=8, **OPTIONS
        )  # fmt: skip
        device_code.add_up_counts[(tensors,)](
            rows, counts, sums, nonfinite, starts, taken.head, CHUNK=CHUNK, **OPTIONS
        )
        device_code.order_taken[(programs,)](
            rows, owners, places, values, counts, bases, starts, taken.head, taken.places,
            taken.values, DTYPE=kind, CHUNK=max(32, block // 64), num_warps=1, **OPTIONS
        )  # fmt: skip
    return taken


def assemble(out: torch.Tensor, parts: Sequence[Selection], factor: float, block: int) -> None:
    """Write the sum of factor * the parts, each entry added up in their order: two launches."""
    device, blocks = out.device, -(-out.numel() // block)
    ranges = np.cumsum([0, *(part.count for part in parts)], dtype=np.int64)
    words = np.concatenate([np.ascontiguousarray(part.indices, np.uint32) for part in parts])
    indices = upload(words.view(np.int32), device)
    scaled = np.concatenate([part.values for part in parts])
    scaled *= scaled.dtype.type(factor)
    values = upload(scaled, device)
    starts = torch.empty(len(parts), blocks + 1, dtype=torch.int64, device=device)
    steps = max(part.count for part in parts).bit_length()  # to halve a range to nothing
    with on(device):
        device_code.find_blocks[(-(-(blocks + 1) // CHUNK), len(parts))](
            indices, upload(ranges, device), starts, blocks, steps,
            BLOCK=block, CHUNK=CHUNK, **OPTIONS
        )  # fmt: skip
        device_code.assemble_blocks[(blocks,)](
            out, out.numel(), indices, values, starts, len(parts), blocks,
            DTYPE=_kind(out.dtype), BLOCK=block, CHUNK=128, **OPTIONS
        )  # fmt: skip


def _table(members: Sequence[Member], block: int) -> np.ndarray:
    """Return what the programs know of the tensors, int64 [members, COLUMNS]."""
    table = np.zeros((len(members), COLUMNS), np.int64)
    program = place = 0
    for row, member in zip(table, members):
        programs = -(-member.out.numel() // block)
        vectors = member.gradient, member.residual, member.out
        addresses = (vector.data_ptr() for vector in vectors)
        row[:] = program, *addresses, member.out.numel(), place, member.room, programs
        program, place = program + programs, place + member.room
    return table


def _cuts(members: Sequence[Member]) -> np.ndarray:
    """Return the thresholds in the data's dtype; where one is 0, the smallest that is not."""
    dtype = np.float64 if members[0].out.dtype == torch.float64 else np.float32
    cuts = [rounded(member.out, member.aim.threshold) for member in members]
    return np.maximum(np.array(cuts, dtype), np.finfo(dtype).smallest_subnormal)


def _room_for(members: int, room: int, dtype: torch.dtype, device: torch.device) -> Taken:
    """Return one piece of memory for all that goes to the host, and its parts."""
    sizes = 24 * members, room * dtype.itemsize, 4 * room
    words = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    head, values, places = words.split(sizes)
    return Taken(head.view(torch.float64), values.view(dtype), places.view(torch.int32), words)


def _kind(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
