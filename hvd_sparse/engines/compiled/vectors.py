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

INDEX, MASK_BIT, DOUBLE, WORD = ir.IntType(32), ir.IntType(1), ir.DoubleType(), ir.IntType(64)


class Vectors:
    """Instructions on vectors of one float type, put where the builder stands."""

    def __init__(self, builder: Any, scalar: ir.Type) -> None:
        self.bytes = 4 if scalar == ir.FloatType() else 8
        self.builder, self.scalar = builder, scalar
        self.lanes = lanes = VECTOR_BYTES // self.bytes
        self.floats = ir.VectorType(scalar, lanes)
        self.indices = ir.VectorType(INDEX, lanes)
        self.mask = ir.VectorType(MASK_BIT, lanes)
        self.half = ir.VectorType(DOUBLE, lanes // 2)
        self.suffix = f"v{lanes}f{32 if scalar == ir.FloatType() else 64}"

    def call(self, name: str, result: ir.Type, *arguments: Any) -> Any:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, function_type, name)
        return self.builder.call(function, arguments)

    def splat(self, value: Any, vector: ir.VectorType) -> Any:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(INDEX, 0))
        lanes = ir.Constant(ir.VectorType(INDEX, vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def constant(self, value: float) -> ir.Constant:
        return ir.Constant(self.floats, [value] * self.lanes)

    def at(self, pointer: Any, index: Any, vector: ir.Type | None = None) -> Any:
        address = self.builder.gep(pointer, [index])
        return self.builder.bitcast(address, vector.as_pointer()) if vector is not None else address

    def load(self, pointer: Any, index: Any) -> Any:
        loaded = self.builder.load(self.at(pointer, index, self.floats))
        loaded.align = self.bytes
        return loaded

    def store(self, vector: Any, pointer: Any, index: Any) -> None:
        self.builder.store(vector, self.at(pointer, index, self.floats)).align = self.bytes

    def doubles(self, vector: Any, first: int) -> Any:
        """Half of the lanes, widened."""
        lanes = [ir.Constant(INDEX, first + i) for i in range(self.lanes // 2)]
        chosen = ir.Constant(ir.VectorType(INDEX, self.lanes // 2), lanes)
        part = self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)
        return part if self.scalar == DOUBLE else self.builder.fpext(part, self.half)

    def ones(self, mask: Any) -> Any:
        """How many lanes of a mask are set."""
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.zext(self.call(f"llvm.ctpop.i{self.lanes}", bits.type, bits), WORD)

    def is_any(self, mask: Any) -> Any:
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def compress_store(self, vector: Any, mask: Any, pointer: Any, index: Any) -> None:
        suffix = f"v{self.lanes}i32" if vector.type == self.indices else self.suffix
        self.call(f"llvm.masked.compressstore.{suffix}", ir.VoidType(), vector, self.at(pointer, index), mask)


@contextmanager
def counting(
    builder: Any, start: Any, stop: Any, step: int, states: list[Any]
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """A loop over [start, stop) by step: gives (index, states on entry, a list for the states on exit)."""
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
