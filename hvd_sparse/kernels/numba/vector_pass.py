"""The fused pass over whole vectors: instructions that no loop in Python has words for.

Entries that reach the threshold are written out by a masked compress-store, which numba has no word
for, behind one branch that is seldom taken. Processors with AVX-512 have it as an instruction; for
others LLVM spells it out. Either way the loop makes one pass and is bound by memory.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.added import vectors_added
from hvd_sparse.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.kernels.numba.vectors import DOUBLE, counting


def _make_add_and_take(past_caches: bool, is_crowded: bool) -> Callable[..., object]:
    """Make an intrinsic over whole vectors: out = residual + what is added, with the threshold's
    entries taken out.

    Parameters
    ----------
    past_caches : what is written is written without reading its lines first, which must begin at
        multiples of 64 bytes
    is_crowded : so many entries reach the threshold that no branch can be guessed: every vector is
        appended, most of it to be overwritten
    """

    def emit(call: Call) -> ir.Value:
        kept, to, at, found, sums = call.pointers(1, 2, 6, 7, 9)
        builder, vectors, (start, stop, cut) = call.builder, call.vectors, call.arguments[3:6]
        store = vectors.store_past_caches if past_caches else vectors.store
        cuts, infinity = vectors.splat_pattern(cut), vectors.infinity()
        zero, added = vectors.constant(0.0), vectors_added(call, store)
        states = [call.arguments[8], zero]
        with counting(builder, start, stop, vectors.lanes, states) as (
            index,
            (taken, total),
            leaving,
        ):
            old = vectors.load(kept, index)
            entry = builder.fadd(old, added(index))
            magnitude = vectors.magnitude(entry)
            patterns = vectors.patterns(entry)
            stays = builder.icmp_signed("<", patterns, cuts)  # NaN does not
            finite = builder.icmp_signed("<", patterns, infinity)

            # Put where it is needed: in the loop for a crowded list, else behind the rare branch.
            def take() -> list[ir.Value]:
                reaches = builder.and_(builder.not_(stays), finite)
                left = builder.select(stays, entry, zero)
                return [vectors.append(entry, reaches, index, at, found, taken), left]

            states_now = take() if is_crowded else [taken, entry]
            with vectors.seldom(
                builder.not_(finite if is_crowded else stays), states_now
            ) as changed:
                count, left = states_now if is_crowded else take()
                changed += [count, builder.select(finite, left, old)]
                nonfinite = vectors.ones(builder.not_(finite))
                call.add_up(sums, 1, builder.uitofp(nonfinite, DOUBLE))
            store(changed[1], to, index)
            leaving += [changed[0], builder.fadd(total, magnitude)]
        call.add_up(sums, 0, vectors.sum(states[1]))
        if past_caches:
            builder.fence("seq_cst")  # such writes may be seen late by other threads
        return states[0]

    @intrinsic
    def add_and_take(  # type: ignore[no-untyped-def]
        typing, x, residual, out, start, stop, cut, indices, values, count, totals, direction
    ):
        words = (types.intp, types.intp, types.intp)
        return types.intp(
            x, residual, out, *words, indices, values, types.intp, totals, direction
        ), instructions(emit)

    made: Callable[..., object] = add_and_take
    return made


# Both choices are made when the code is, so that no loop asks for them.
_add_and_take = _make_add_and_take(False, False)
_add_and_take_crowded = _make_add_and_take(False, True)
_add_and_take_past_caches = _make_add_and_take(True, False)
_add_and_take_past_caches_crowded = _make_add_and_take(True, True)


@njit
def add_and_take_vectors(past_caches, is_crowded, *arguments):  # type: ignore[no-untyped-def]
    """Call the intrinsic that suits."""
    if past_caches and is_crowded:
        return _add_and_take_past_caches_crowded(*arguments)
    if past_caches:
        return _add_and_take_past_caches(*arguments)
    if is_crowded:
        return _add_and_take_crowded(*arguments)
    return _add_and_take(*arguments)
