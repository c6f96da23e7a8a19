"""LLVM instructions on vectors of 64 bytes, for loops that numba has no words for.

A change here does not reach functions that numba has compiled and cached: touch ``sweeps.py`` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

VECTOR_BYTES = 64

INDEX, WORD, DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()


class Vectors:
    """Instructions on vectors of one float type, put where the builder stands."""

    def __init__(self, builder: Any, scalar: ir.Type) -> None:
        self.bytes = 4 if scalar == ir.FloatType() else 8
        self.builder, self.scalar = builder, scalar
        self.lanes = lanes = VECTOR_BYTES // self.bytes
        self.floats = ir.VectorType(scalar, lanes)
        self.indices = ir.VectorType(INDEX, lanes)
        self.half = ir.VectorType(DOUBLE, lanes // 2)
        self.suffix = f"v{lanes}f{32 if scalar == ir.FloatType() else 64}"

    def call(self, name: str, result: ir.Type, *arguments: Any) -> Any:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, function_type, name)
        return self.builder.call(function, arguments)

    def splat(self, value: Any, vector: ir.VectorType | None = None) -> Any:
        """The value in all lanes: of floats, unless told otherwise."""
        vector = vector or self.floats
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(INDEX, 0))
        lanes = ir.Constant(ir.VectorType(INDEX, vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def constant(self, value: float) -> ir.Constant:
        return ir.Constant(self.floats, [value] * self.lanes)

    def positions(self, index: Any) -> Any:
        """index, index + 1, ... as 32-bit integers."""
        lanes = ir.Constant(self.indices, list(range(self.lanes)))
        return self.builder.add(self.splat(self.builder.trunc(index, INDEX), self.indices), lanes)

    def magnitude(self, vector: Any) -> Any:
        return self.call(f"llvm.fabs.{self.suffix}", self.floats, vector)

    def at(self, pointer: Any, index: Any, vector: ir.Type | None = None) -> Any:
        address = self.builder.gep(pointer, [index])
        return self.builder.bitcast(address, vector.as_pointer()) if vector is not None else address

    def load(self, pointer: Any, index: Any) -> Any:
        loaded = self.builder.load(self.at(pointer, index, self.floats))
        loaded.align = self.bytes
        return loaded

    def store(self, vector: Any, pointer: Any, index: Any) -> None:
        self.builder.store(vector, self.at(pointer, index, self.floats)).align = self.bytes

    def store_past_caches(self, vector: Any, pointer: Any, index: Any) -> None:
        """The same, for a place that is a multiple of 64 bytes, and whose line is neither read
        before nor kept after."""
        store = self.builder.store(vector, self.at(pointer, index, self.floats))
        store.align = VECTOR_BYTES
        store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(INDEX, 1)]))

    def no_doubles(self) -> list[ir.Constant]:
        """Two zero sums, for the halves that ``doubles`` gives."""
        return [ir.Constant(self.half, [0.0] * (self.lanes // 2))] * 2

    def doubles(self, vector: Any, half: int) -> Any:
        """The first or the second half of the lanes, widened."""
        first = half * self.lanes // 2
        lanes = [ir.Constant(INDEX, first + i) for i in range(self.lanes // 2)]
        chosen = ir.Constant(ir.VectorType(INDEX, self.lanes // 2), lanes)
        part = self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)
        return part if self.scalar == DOUBLE else self.builder.fpext(part, self.half)

    def sum(self, vector: Any) -> Any:
        """Of all lanes, as a double."""
        halves = self.builder.fadd(self.doubles(vector, 0), self.doubles(vector, 1))
        return self.sum_of_doubles(halves)

    def sum_of_doubles(self, vector: Any) -> Any:
        zero = ir.Constant(DOUBLE, 0.0)
        return self.call(f"llvm.vector.reduce.fadd.v{self.lanes // 2}f64", DOUBLE, zero, vector)

    def largest(self, vector: Any) -> Any:
        """Of all lanes, none of which is NaN, as a double."""
        top = self.call(f"llvm.vector.reduce.fmax.{self.suffix}", self.scalar, vector)
        return top if self.scalar == DOUBLE else self.builder.fpext(top, DOUBLE)

    def ones(self, mask: Any) -> Any:
        """How many lanes of a mask are set."""
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.zext(self.call(f"llvm.ctpop.i{self.lanes}", bits.type, bits), WORD)

    def is_any(self, mask: Any) -> Any:
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    @contextmanager
    def seldom(self, mask: Any, states: list[Any]) -> Iterator[list[Any]]:
        """What is done only if a lane of the mask is set: it puts the new states into the list, and
        finds them there."""
        before = self.builder.block
        changed: list[Any] = []
        with self.builder.if_then(self.is_any(mask), likely=False):
            yield changed
            inside = self.builder.block
        for i, state in enumerate(states):
            merged = self.builder.phi(state.type)
            merged.add_incoming(state, before)
            merged.add_incoming(changed[i], inside)
            changed[i] = merged

    def append(
        self, entry: Any, mask: Any, index: Any, indices: Any, values: Any, count: Any
    ) -> Any:
        """The masked entries and their indices go to the end of a list, behind which a vector has
        room; its new length."""
        for vector, pointer in ((entry, values), (self.positions(index), indices)):
            to_the_front = self.call(
                f"llvm.experimental.vector.compress.{self._suffix_of(vector)}",
                vector.type,
                vector,
                mask,
                vector,
            )
            place = self.builder.bitcast(self.at(pointer, count), vector.type.as_pointer())
            self.builder.store(to_the_front, place).align = (
                4 if vector.type == self.indices else self.bytes
            )
        return self.builder.add(count, self.ones(mask))

    def _suffix_of(self, vector: Any) -> str:
        return f"v{self.lanes}i32" if vector.type == self.indices else self.suffix


@contextmanager
def counting(
    builder: Any, start: Any, stop: Any, step: int, states: list[Any]
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """A loop over [start, stop) by step: gives (index, states on entry, a list for the states on
    exit)."""
    before, head = builder.block, builder.append_basic_block("head")
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(WORD)
    index.add_incoming(start, before)
    entering = [builder.phi(state.type) for state in states]
    for phi, state in zip(entering, states):
        phi.add_incoming(state, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
    builder.position_at_end(body)
    leaving: list[Any] = []
    yield index, entering, leaving
    index.add_incoming(builder.add(index, ir.Constant(WORD, step)), builder.block)
    for phi, state in zip(entering, leaving):
        phi.add_incoming(state, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    states[:] = entering
