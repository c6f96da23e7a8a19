"""LLVM instructions on vectors of 64 bytes, for loops that numba has no words for.

A change here does not reach functions that numba has compiled and cached: touch ``fused.py``,
``lists.py``, ``packing_loops.py``, ``rows.py`` and ``scans.py`` too.

Magnitudes are compared as bit patterns, not as floats: a thread that takes subnormal numbers for
zero must take the same entries as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import overload

VECTOR_BYTES = 64

INDEX, WORD, DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()

SEGMENT = 2048
"""Entries between two looks at how full the list is.

Also how many magnitudes are added up in the data's dtype before the sum goes into a float64."""

SPARE = SEGMENT + 16
"""Room in a list beyond its capacity: a segment, and the rest of a vector written behind it."""


class Vectors:
    """Instructions on vectors of one float type, put where the builder stands."""

    def __init__(self, builder: ir.IRBuilder, scalar: ir.Type) -> None:
        self.bytes = 4 if scalar == ir.FloatType() else 8
        self.builder, self.scalar = builder, scalar
        self.lanes = lanes = VECTOR_BYTES // self.bytes
        self.floats = ir.VectorType(scalar, lanes)
        self.indices = ir.VectorType(INDEX, lanes)
        self.integer = ir.IntType(8 * self.bytes)
        self.integers = ir.VectorType(self.integer, lanes)
        self.half = ir.VectorType(DOUBLE, lanes // 2)
        self.suffix = f"v{lanes}f{32 if scalar == ir.FloatType() else 64}"

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, function_type, name)
        return self.builder.call(function, arguments)

    def splat(self, value: ir.Value, vector: ir.VectorType | None = None) -> ir.Value:
        """Return the value in all lanes, of floats unless told otherwise."""
        vector = vector or self.floats
        undefined = ir.Constant(vector, ir.Undefined)
        # Into one lane, and from there into all: LLVM knows this as a broadcast.
        first = self.builder.insert_element(undefined, value, ir.Constant(INDEX, 0))
        lanes = ir.Constant(ir.VectorType(INDEX, vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def constant(self, value: float) -> ir.Constant:
        return ir.Constant(self.floats, [value] * self.lanes)

    def positions(self, index: ir.Value) -> ir.Value:
        lanes = ir.Constant(self.indices, list(range(self.lanes)))
        return self.builder.add(self.splat(self.builder.trunc(index, INDEX), self.indices), lanes)

    def magnitude(self, vector: ir.Value) -> ir.Value:
        return self.call(f"llvm.fabs.{self.suffix}", self.floats, vector)

    def patterns(self, vector: ir.Value) -> ir.Value:
        mask = (1 << (8 * self.bytes - 1)) - 1
        bits = self.builder.bitcast(vector, self.integers)
        return self.builder.and_(bits, ir.Constant(self.integers, [mask] * self.lanes))

    def splat_pattern(self, bits: ir.Value) -> ir.Value:
        """Return a bit pattern, given as 64 bits, in all lanes."""
        fitting = bits if self.integer == WORD else self.builder.trunc(bits, self.integer)
        return self.splat(fitting, self.integers)

    def infinity(self) -> ir.Value:
        """Return infinity's bit pattern in all lanes: below it numbers are finite, above it NaN."""
        bits = 0x7F800000 if self.bytes == 4 else 0x7FF0000000000000
        return ir.Constant(self.integers, [bits] * self.lanes)

    def at(self, pointer: ir.Value, index: ir.Value, vector: ir.Type | None = None) -> ir.Value:
        """Return the address of an entry, cast to a pointer to a vector type if one is given."""
        address = self.builder.gep(pointer, [index])
        return self.builder.bitcast(address, vector.as_pointer()) if vector is not None else address

    def load(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        loaded = self.builder.load(self.at(pointer, index, self.floats))
        loaded.align = self.bytes  # vectors of a program need not begin at a cache line
        return loaded

    def store(self, vector: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(vector, self.at(pointer, index, self.floats)).align = self.bytes

    def store_past_caches(self, vector: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        """Write a vector to a whole line of 64 bytes, which is not read before or kept after."""
        store = self.builder.store(vector, self.at(pointer, index, self.floats))
        store.align = VECTOR_BYTES
        # A hint, which LLVM keeps for whole aligned vectors only.
        store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(INDEX, 1)]))

    def no_doubles(self) -> list[ir.Constant]:
        """Return two zero sums, for the two parts that ``doubles`` gives."""
        return [ir.Constant(self.half, [0.0] * (self.lanes // 2))] * 2

    def doubles(self, vector: ir.Value, half: int) -> ir.Value:
        """Return the first or the second half of the lanes, widened."""
        first = half * self.lanes // 2
        lanes = [ir.Constant(INDEX, first + i) for i in range(self.lanes // 2)]
        chosen = ir.Constant(ir.VectorType(INDEX, self.lanes // 2), lanes)
        part = self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)
        return part if self.scalar == DOUBLE else self.builder.fpext(part, self.half)

    def sum(self, vector: ir.Value) -> ir.Value:
        halves = self.builder.fadd(self.doubles(vector, 0), self.doubles(vector, 1))
        return self.sum_of_doubles(halves)

    def sum_of_doubles(self, vector: ir.Value) -> ir.Value:
        # LLVM adds the lanes in order, as no reassociation is allowed: the same bits everywhere.
        zero = ir.Constant(DOUBLE, 0.0)
        return self.call(f"llvm.vector.reduce.fadd.v{self.lanes // 2}f64", DOUBLE, zero, vector)

    def largest(self, vector: ir.Value) -> ir.Value:
        """Return the largest lane, as a double; none of them may be NaN."""
        top = self.call(f"llvm.vector.reduce.fmax.{self.suffix}", self.scalar, vector)
        return top if self.scalar == DOUBLE else self.builder.fpext(top, DOUBLE)

    def ones(self, mask: ir.Value) -> ir.Value:
        # A mask has one bit a lane.
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.zext(self.call(f"llvm.ctpop.i{self.lanes}", bits.type, bits), WORD)

    def is_any(self, mask: ir.Value) -> ir.Value:
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    @contextmanager
    def seldom(self, mask: ir.Value, states: list[ir.Value]) -> Iterator[list[ir.Value]]:
        """Run a block only if a lane of the mask is set.

        The block appends the new states to the list; behind it the list has these, or the old
        states.
        """
        before = self.builder.block
        changed: list[ir.Value] = []
        # Called unlikely, the block moves out of the loop's straight line.
        with self.builder.if_then(self.is_any(mask), likely=False):
            yield changed
            inside = self.builder.block
        for i, state in enumerate(states):
            merged = self.builder.phi(state.type)
            merged.add_incoming(state, before)
            merged.add_incoming(changed[i], inside)
            changed[i] = merged

    def append(
        self,
        entry: ir.Value,
        mask: ir.Value,
        index: ir.Value,
        indices: ir.Value,
        values: ir.Value,
        count: ir.Value,
    ) -> ir.Value:
        """Append the masked entries and their indices to a list, with room for a vector behind its
        end; return its new length."""
        for vector, pointer in ((entry, values), (self.positions(index), indices)):
            to_the_front = self.call(
                f"llvm.experimental.vector.compress.{self._suffix_of(vector)}",
                vector.type,
                vector,
                mask,
                vector,
            )
            # A whole vector is stored; the next append overwrites what is behind the count.
            place = self.builder.bitcast(self.at(pointer, count), vector.type.as_pointer())
            self.builder.store(to_the_front, place).align = (
                4 if vector.type == self.indices else self.bytes
            )
        return self.builder.add(count, self.ones(mask))

    def _suffix_of(self, vector: ir.Value) -> str:
        return f"v{self.lanes}i32" if vector.type == self.indices else self.suffix


@contextmanager
def counting(
    builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int, states: list[ir.Value]
) -> Iterator[tuple[ir.Value, list[ir.Value], list[ir.Value]]]:
    """Loop over [start, stop) by step: yield index, states on entry, and a list for those on
    exit."""
    before, head = builder.block, builder.append_basic_block("head")
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    # In SSA form a variable that a loop changes is a phi: its value is that of the block the
    # program came from, before the loop or the end of its body.
    index = builder.phi(WORD)
    index.add_incoming(start, before)
    entering = [builder.phi(state.type) for state in states]
    for phi, state in zip(entering, states):
        phi.add_incoming(state, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
    builder.position_at_end(body)
    leaving: list[ir.Value] = []
    yield index, entering, leaving
    # Here the body is complete: its last block is the one that the phis come from.
    index.add_incoming(builder.add(index, ir.Constant(WORD, step)), builder.block)
    for phi, state in zip(entering, leaving):
        phi.add_incoming(state, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    states[:] = entering


class Call:
    """A call of an intrinsic; ``builder`` writes its instructions, ``arguments`` are its values."""

    def __init__(
        self,
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> None:
        self.builder, self.arguments = builder, arguments
        self._context, self._types = context, signature.args

    @cached_property
    def vectors(self) -> Vectors:
        """Return the instructions on vectors of the first argument's type, which is an array."""
        return Vectors(self.builder, self._context.get_data_type(self._types[0].dtype))

    def pointers(self, *positions: int) -> list[ir.Value]:
        return [
            self._pointer(self._types[position], self.arguments[position]) for position in positions
        ]

    def members(self, position: int) -> list[ir.Value]:
        """Return the values in a tuple argument; of an array, where its entries begin."""
        whole, kinds = self.arguments[position], self._types[position].types
        values = [self.builder.extract_value(whole, i) for i in range(len(kinds))]
        return [
            self._pointer(kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, values)
        ]

    def is_set(self, number: ir.Value) -> ir.Value:
        """Return whether an integer is not 0, as ``select`` wants it."""
        return self.builder.icmp_signed("!=", number, ir.Constant(number.type, 0))

    def _pointer(self, kind: types.Array, value: ir.Value) -> ir.Value:
        array = self._context.make_array(kind)(self._context, self.builder, value)
        return array.data

    def add_up(self, totals: ir.Value, position: int, amount: ir.Value) -> None:
        slot = self.builder.gep(totals, [ir.Constant(WORD, position)])
        self.builder.store(self.builder.fadd(self.builder.load(slot), amount), slot)


Emit = Callable[[Call], ir.Value | None]
"""Writes the instructions of a call, and returns its result; None where it has none."""


def instructions(emit: Emit) -> Callable[..., ir.Value]:
    """Return a code generator as numba wants it."""

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        result = emit(Call(context, builder, signature, arguments))
        return context.get_dummy_value() if result is None else result

    return codegen


def pattern_of(entry: float) -> tuple[int, int]:
    """Return the bit pattern of a magnitude, as the vectors compare it, and that of infinity."""
    raise NotImplementedError  # numba puts the overload in its place


@overload(pattern_of)
def _pattern_by_type(entry):  # type: ignore[no-untyped-def]
    if entry == types.float32:
        return lambda entry: (
            np.intp(np.float32(entry).view(np.int32) & np.int32(0x7FFFFFFF)),
            np.intp(0x7F800000),
        )
    return lambda entry: (
        np.intp(np.float64(entry).view(np.int64) & np.int64(0x7FFFFFFFFFFFFFFF)),
        np.intp(0x7FF0000000000000),
    )


def reaching(vectors: Vectors, entry: ir.Value, cuts: ir.Value) -> ir.Value:
    """Return a mask of the entries that reach the cut; NaN never does."""
    builder, patterns = vectors.builder, vectors.patterns(entry)
    is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
    return builder.and_(builder.icmp_signed(">=", patterns, cuts), is_number)


def signatures(arguments: str, result: types.Type = types.intp) -> list[Signature]:
    """Return one signature a float type.

    arguments : a letter each: v a value, x values read, O values written, j indices read, J indices
        written, p a position or count, f a float64, I positions written, S float64 totals written;
        vectors are 1-D and C-contiguous
    """
    made = []
    for scalar in (types.float32, types.float64):
        kinds = {
            "v": scalar,
            "x": types.Array(scalar, 1, "C", readonly=True),
            "O": types.Array(scalar, 1, "C"),
            "j": types.Array(types.uint32, 1, "C", readonly=True),
            "J": types.Array(types.uint32, 1, "C"),
            "p": types.intp,
            "f": types.float64,
            "I": types.Array(types.intp, 1, "C"),
            "S": types.Array(types.float64, 1, "C"),
        }
        made.append(result(*(kinds[letter] for letter in arguments)))
    return made


@njit
def whole_end(x, start, stop):  # type: ignore[no-untyped-def]
    lanes = 64 // x.itemsize
    return start + (stop - start) // lanes * lanes
