"""The functions that Triton compiles for a GPU. ``kernels.triton`` makes their arguments; its
``COLUMNS`` describes the argument ``table``, which in ``assemble_blocks`` has only three columns:
first program, address and number of entries. Most functions run as many programs (blocks of
threads), each of which processes one block of a tensor. Programs run in any order, so the lists of
taken entries are sorted by a later launch. Atomics are used only to reserve places in these
lists."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take_blocks(  # type: ignore[no-untyped-def]
    table, owners, cuts, taken, places, values, counts, bases, sums, nonfinite, most, nonzeros,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr, HAS_MOMENTS: tl.constexpr,
):  # fmt: skip
    """Add the gradient to the residual in one block, take the entries that reach the cut, and count
    the entries that are not finite. The cut is the threshold in the data's dtype. If the list of a
    tensor is full, further entries stay in the vector; ``order_taken`` then writes the listed
    entries back, too."""
    program = tl.program_id(0)
    tensor = tl.load(owners + program)
    row = table + tensor * 8
    gradient = tl.load(row + 1).to(tl.pointer_type(DTYPE))
    residual = tl.load(row + 2).to(tl.pointer_type(DTYPE))
    out = tl.load(row + 3).to(tl.pointer_type(DTYPE))
    numel = tl.load(row + 4)
    if IS_ALIGNED:  # tell Triton, so that it loads 16 bytes at once
        numel = tl.multiple_of(numel, 4)
        gradient = tl.multiple_of(gradient, 16)
        residual = tl.multiple_of(residual, 16)
        out = tl.multiple_of(out, 16)
    offsets = (program - tl.load(row)) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    old = tl.load(residual + offsets, mask=inside, other=0.0)
    new = tl.load(gradient + offsets, mask=inside, other=0.0)
    total = old + new
    magnitudes = tl.abs(total)
    is_finite = magnitudes < float("inf")
    reaches = inside & is_finite & (magnitudes >= tl.load(cuts + tensor))

    ones = reaches.to(tl.int32)
    count = tl.sum(ones, 0)
    # Programs reserve places in any order; ``order_taken`` removes the effect of this order.
    base = tl.atomic_add(taken + tensor, count.to(tl.int64))
    slots = base + tl.cumsum(ones, 0) - ones
    fits = reaches & (slots < tl.load(row + 6))
    at = tl.load(row + 5) + slots
    tl.store(places + at, offsets.to(tl.int32), mask=fits)
    tl.store(values + at, total, mask=fits)

    # Keep the old entry where the sum is not finite, so that no residual ever has NaN or Inf.
    kept = tl.where(is_finite, total, old)
    left = tl.where(fits, tl.zeros([BLOCK], DTYPE), kept)
    tl.store(out + offsets, left, mask=inside)
    tl.store(counts + program, count)
    tl.store(bases + program, base)
    # Sum by program, without atomics: the bits of a float sum depend on the order of its terms.
    if HAS_MOMENTS:
        seen = tl.where(inside, magnitudes, 0.0)
        # Add in float64, because float32 sums may overflow.
        tl.store(sums + program, tl.sum(seen.to(tl.float64), 0))
        tl.store(most + program, tl.max(tl.where(is_finite, seen, 0.0), 0).to(tl.float64))
        tl.store(nonzeros + program, tl.sum((seen != 0).to(tl.int32), 0))
    tl.store(nonfinite + program, tl.sum((inside & (is_finite == 0)).to(tl.int32), 0))


@triton.jit
def add_up_counts(  # type: ignore[no-untyped-def]
    table, counts, sums, nonfinite, most, nonzeros, starts, head,
    HAS_MOMENTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """For one tensor, compute at which place in the ordered list of taken entries each program's
    entries begin. Also add up the results of the programs, in a fixed order, so that the bits are
    always the same."""
    tensor = tl.program_id(0)
    row = table + tensor * 8
    first = tl.load(row)
    programs = tl.load(row + 7)
    numbered = head + tensor * 5
    count = tl.zeros([], tl.int64)
    bad = tl.zeros([], tl.int64)
    total = tl.zeros([], tl.float64)
    largest = tl.zeros([], tl.float64)
    nonzero = tl.zeros([], tl.int64)
    for start in range(0, programs, CHUNK):
        numbers = start + tl.arange(0, CHUNK)
        inside = numbers < programs
        found = tl.load(counts + first + numbers, mask=inside, other=0).to(tl.int64)
        tl.store(starts + first + numbers, count + tl.cumsum(found, 0) - found, mask=inside)
        count += tl.sum(found, 0)
        bad += tl.sum(tl.load(nonfinite + first + numbers, mask=inside, other=0).to(tl.int64), 0)
        if HAS_MOMENTS:
            total += tl.sum(tl.load(sums + first + numbers, mask=inside, other=0.0), 0)
            highest = tl.load(most + first + numbers, mask=inside, other=0.0)
            largest = tl.maximum(largest, tl.max(highest, 0))
            others = tl.load(nonzeros + first + numbers, mask=inside, other=0)
            nonzero += tl.sum(others.to(tl.int64), 0)
    # Store counts as float64 (exact up to 2**53) too, so that one copy to the host is enough.
    tl.store(numbered, count.to(tl.float64))
    tl.store(numbered + 1, bad.to(tl.float64))
    tl.store(numbered + 2, total)
    tl.store(numbered + 3, largest)
    tl.store(numbered + 4, nonzero.to(tl.float64))


@triton.jit
def order_taken(  # type: ignore[no-untyped-def]
    table, owners, places, values, counts, bases, starts, head, ordered_places, ordered_values,
    DTYPE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Copy the entries that one program took to the ordered list, in which the indices of a tensor
    ascend. If more entries were taken than fit the list of their tensor, write them back into the
    vector instead."""
    program = tl.program_id(0)
    tensor = tl.load(owners + program)
    row = table + tensor * 8
    out = tl.load(row + 3).to(tl.pointer_type(DTYPE))
    begin = tl.load(row + 5)
    room = tl.load(row + 6)
    # All programs of a tensor take the same branch, so all its entries are listed, or none is.
    is_whole = tl.load(head + tensor * 5) <= room
    base = tl.load(bases + program)
    start = tl.load(starts + program)
    count = tl.load(counts + program)
    for done in range(0, count, CHUNK):
        numbers = done + tl.arange(0, CHUNK)
        stored = (numbers < count) & (base + numbers < room)
        place = tl.load(places + begin + base + numbers, mask=stored, other=0)
        value = tl.load(values + begin + base + numbers, mask=stored, other=0.0)
        if is_whole:
            tl.store(ordered_places + begin + start + numbers, place, mask=stored)
            tl.store(ordered_values + begin + start + numbers, value, mask=stored)
        else:
            tl.store(out + (place.to(tl.int64) & 0xFFFFFFFF), value, mask=stored)


@triton.jit(do_not_specialize=["parts", "steps", "blocks", "surplus"])
def assemble_blocks(  # type: ignore[no-untyped-def]
    table, owners, ranges, indices, values, parts, steps, blocks, addresses, kept_back, surplus,
    DTYPE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, IS_ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Write one block of a tensor's sum: zeros, to which the parts are added in their order. Only
    the first ``blocks`` programs do this. The others write the surplus (entries that were taken but
    not sent) back to its addresses, which lie in no block.

    Only one program writes to a block, and the indices of a part are unique. So between two
    barriers, no thread reads an entry that another thread writes.
    """
    program = tl.program_id(0)
    if program >= blocks:
        rest = (program - blocks) * BACK + tl.arange(0, BACK)
        is_there = rest < surplus
        targets = tl.load(addresses + rest, mask=is_there, other=0).to(tl.pointer_type(DTYPE))
        tl.store(targets, tl.load(kept_back + rest, mask=is_there, other=0.0), mask=is_there)
        return
    tensor = tl.load(owners + program)
    row = table + tensor * 3
    out = tl.load(row + 1).to(tl.pointer_type(DTYPE))
    numel = tl.load(row + 2)
    if IS_ALIGNED:
        numel = tl.multiple_of(numel, 4)
        out = tl.multiple_of(out, 16)
    first = (program - tl.load(row)) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.zeros([BLOCK], DTYPE), mask=offsets < numel)

    # In the ascending indices of each part, find the range of this block by bisection: one lane
    # finds the start of the range, and another its end. All bisections run at the same time,
    # because each step waits for memory.
    lanes = tl.arange(0, LANES)
    is_used = lanes < 2 * parts
    mine = ranges + tensor * (parts + 1) + lanes // 2
    low = tl.load(mine, mask=is_used, other=0)
    high = tl.load(mine + 1, mask=is_used, other=0)
    bounds = first + (lanes % 2) * BLOCK
    for _ in range(steps):
        is_open = low < high
        middle = (low + high) // 2
        place = tl.load(indices + middle, mask=is_open, other=0).to(tl.int64) & 0xFFFFFFFF
        is_before = place < bounds
        low = tl.where(is_open & is_before, middle + 1, low)
        high = tl.where(is_open & (is_before == 0), middle, high)

    for part in range(parts):
        tl.debug_barrier()
        begin = tl.sum(tl.where(lanes == 2 * part, low, 0), 0)
        end = tl.sum(tl.where(lanes == 2 * part + 1, low, 0), 0)
        for start in range(begin, end, CHUNK):
            numbers = start + tl.arange(0, CHUNK)
            inside = numbers < end
            place = tl.load(indices + numbers, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF
            old = tl.load(out + place, mask=inside, other=0.0)
            new = tl.load(values + numbers, mask=inside, other=0.0)
            tl.store(out + place, old + new, mask=inside)
