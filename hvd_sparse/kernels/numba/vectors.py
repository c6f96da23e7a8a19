"""LLVM instructions on SIMD vectors of 64 bytes, which numba does not offer.

Magnitudes are compared as bit patterns, because float comparisons depend on whether the thread
flushes subnormal numbers to zero.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.caching import IndexDataCacheFile
from numba.core.event import Listener, install_listener
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, overload

logger = logging.getLogger("hvd_sparse")

VECTOR_BYTES = 64

INDEX, WORD, DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()

SEGMENT = 2048
"""Number of entries after which a pass checks whether the list is full."""

SPARE = SEGMENT + 16
"""Room in a list beyond its capacity, in entries: a segment, and one vector."""

LARGE_BYTES = 1 << 18
"""Length in bytes of the smallest array that is written past the caches: an eighth of a
second-level cache. Other tensors displace it before its next use."""


class Compiling(Listener):  # type: ignore[misc]
    """Logs that numba compiles, once per process. Nothing is logged if numba finds the compiled
    functions in its cache."""

    def __init__(self, is_cached: bool) -> None:
        self._is_cached = is_cached

    def on_start(self, _: object) -> None:
        _say_compiling(self._is_cached)

    def on_end(self, _: object) -> None:
        """Do nothing, because the message is logged at the start."""


@cache  # once per process
def _say_compiling(is_cached: bool) -> None:
    later = "later starts on this machine read them from a cache"
    if not is_cached:
        later = (
            "every start does this, because neither the folder of hvd_sparse nor ~/.cache can be "
            "written: set NUMBA_CACHE_DIR to a writable folder"
        )
    logger.warning("numba compiles the kernels, which takes a minute or more; %s", later)


@cache
def sources() -> bytes:
    """Return a digest of the files whose functions and constants the compiled code contains."""
    folder = Path(__file__).parent
    files = [*sorted(folder.parent.glob("*.py")), *sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()


def _use_cache(dispatcher: Any) -> bool:
    """Let numba cache the compiled code of a function on disk. Return False if numba finds no
    writable folder, and otherwise True."""
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        return False
    cache = dispatcher._cache
    # Numba compiles again if this stamp differs. Its own stamp is that of the function's file only.
    cache._cache_file = IndexDataCacheFile(
        cache.cache_path, cache._impl.filename_base, source_stamp=sources()
    )
    return True


def compiled(signatures: Sequence[Signature]) -> Callable[..., Any]:
    """Return a decorator that compiles a function for calls from Python with these signatures, and
    caches the result on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True)(function)
        with install_listener("numba:compile", Compiling(_use_cache(dispatcher))):
            for signature in signatures:
                dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return decorate


class Vectors:
    """Emits instructions on SIMD vectors of ``lanes`` entries of a scalar type. The default is the
    number of entries in ``VECTOR_BYTES``. With one lane, a vector is a single entry."""

    def __init__(self, builder: ir.IRBuilder, scalar: ir.Type, lanes: int = 0) -> None:
        self.bytes = 4 if scalar == ir.FloatType() else 8
        self.builder, self.scalar = builder, scalar
        self.lanes = lanes = lanes or VECTOR_BYTES // self.bytes
        self.floats = ir.VectorType(scalar, lanes)
        self.indices = ir.VectorType(INDEX, lanes)
        self.integer = ir.IntType(8 * self.bytes)
        self.integers = ir.VectorType(self.integer, lanes)
        self.doubles = ir.VectorType(DOUBLE, lanes)
        self.suffix = f"v{lanes}f{32 if scalar == ir.FloatType() else 64}"

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, function_type, name)
        return self.builder.call(function, arguments)

    def splat(self, value: ir.Value, vector: ir.VectorType | None = None) -> ir.Value:
        """Return a vector with the value in all lanes; the type is ``self.floats`` by default."""
        vector = vector or self.floats
        undefined = ir.Constant(vector, ir.Undefined)
        # LLVM recognizes this sequence as a broadcast.
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
        fitting = bits if self.integer == WORD else self.builder.trunc(bits, self.integer)
        return self.splat(fitting, self.integers)

    def infinity(self) -> ir.Value:
        """Return the bit pattern of infinity in all lanes. Lower patterns are those of finite
        magnitudes, and higher patterns are NaN."""
        bits = 0x7F800000 if self.bytes == 4 else 0x7FF0000000000000
        return ir.Constant(self.integers, [bits] * self.lanes)

    def at(self, pointer: ir.Value, index: ir.Value, vector: ir.Type) -> ir.Value:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), vector.as_pointer())

    def load(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        loaded = self.builder.load(self.at(pointer, index, self.floats))
        loaded.align = self.bytes  # arrays need not be aligned to cache lines
        return loaded

    def store(self, vector: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(vector, self.at(pointer, index, self.floats)).align = self.bytes

    def store_past_caches(self, vector: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        """Write a vector to an aligned cache line without reading the line into the caches."""
        store = self.builder.store(vector, self.at(pointer, index, self.floats))
        store.align = VECTOR_BYTES
        # LLVM follows this hint only for whole aligned vectors.
        store.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(INDEX, 1)]))

    def widened(self, vector: ir.Value) -> ir.Value:
        return vector if self.scalar == DOUBLE else self.builder.fpext(vector, self.doubles)

    def sum_of_doubles(self, vector: ir.Value) -> ir.Value:
        # LLVM may not reorder this sum, so all machines get the same bits.
        zero = ir.Constant(DOUBLE, 0.0)
        return self.call(f"llvm.vector.reduce.fadd.v{self.lanes}f64", DOUBLE, zero, vector)

    def largest(self, vector: ir.Value) -> ir.Value:
        """Return the value of the largest lane, as a double. No lane may be NaN."""
        top = self.call(f"llvm.vector.reduce.fmax.{self.suffix}", self.scalar, vector)
        return top if self.scalar == DOUBLE else self.builder.fpext(top, DOUBLE)

    def ones(self, mask: ir.Value) -> ir.Value:
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        return self.builder.zext(self.call(f"llvm.ctpop.i{self.lanes}", bits.type, bits), WORD)

    @contextmanager
    def seldom(self, mask: ir.Value, states: list[ir.Value]) -> Iterator[list[ir.Value]]:
        """Emit a block that runs only if a lane of the mask is set. ``states`` are values that the
        block replaces. The caller emits the block in the ``with`` statement, and appends the new
        values to the yielded list. After the statement, this list has the values to use: the new
        ones if the block ran, and otherwise ``states``."""
        before = self.builder.block
        changed: list[ir.Value] = []
        bits = self.builder.bitcast(mask, ir.IntType(self.lanes))
        is_any = self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
        # LLVM moves an unlikely block out of the loop.
        with self.builder.if_then(is_any, likely=False):
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
        """Append the lanes of the vector ``entry`` that are set in the mask to a list, with their
        indices from ``index`` on. ``count`` is the list's length. Return the new length. The list
        must have room for a whole vector."""
        for vector, pointer, suffix, align in (
            (entry, values, self.suffix, self.bytes),
            (self.positions(index), indices, f"v{self.lanes}i32", 4),
        ):
            name = f"llvm.experimental.vector.compress.{suffix}"
            to_the_front = vector
            if self.lanes > 1:
                to_the_front = self.call(name, vector.type, vector, mask, vector)
            # Store a whole vector; the next append overwrites its surplus.
            place = self.at(pointer, count, vector.type)
            self.builder.store(to_the_front, place).align = align
        return self.builder.add(count, self.ones(mask))


@contextmanager
def counting(
    builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int, states: list[ir.Value]
) -> Iterator[tuple[ir.Value, list[ir.Value], list[ir.Value]]]:
    """Emit a loop over [start, stop), whose body the caller emits in the ``with`` statement.
    ``states`` are the values that an iteration passes to the next one. Yield the index, the states
    at the start of an iteration, and a list to which the caller appends the states at the
    iteration's end. After the loop, ``states`` has the final values."""
    before, head = builder.block, builder.append_basic_block("head")
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    # In LLVM's SSA form, a phi takes its value from before the loop or from the end of the body.
    index = builder.phi(WORD)
    index.add_incoming(start, before)
    entering = [builder.phi(state.type) for state in states]
    for phi, state in zip(entering, states):
        phi.add_incoming(state, before)
    builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
    builder.position_at_end(body)
    leaving: list[ir.Value] = []
    yield index, entering, leaving
    # The body is complete here, so its last block is known.
    index.add_incoming(builder.add(index, ir.Constant(WORD, step)), builder.block)
    for phi, state in zip(entering, leaving):
        phi.add_incoming(state, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    states[:] = entering


class Call:
    """A call of a function of ``emitted``: its LLVM arguments, and numba's types of them."""

    def __init__(
        self,
        context: BaseContext,
        builder: ir.IRBuilder,
        kinds: Sequence[types.Type],
        arguments: Sequence[ir.Value],
    ) -> None:
        self.builder, self.arguments = builder, arguments
        self._context, self._types = context, kinds

    @cached_property
    def vectors(self) -> Vectors:
        return Vectors(self.builder, self._context.get_data_type(self._types[0].dtype))

    def spans(
        self, start: ir.Value, stop: ir.Value
    ) -> Iterator[tuple[Vectors, ir.Value, ir.Value]]:
        """Yield the arguments of two loops, which together cover [start, stop): for each loop, the
        ``Vectors`` to use and its bounds. The first loop processes whole SIMD vectors, and the
        second the remaining entries, one by one."""
        lanes = ir.Constant(WORD, self.vectors.lanes)
        rest = self.builder.srem(self.builder.sub(stop, start), lanes)
        whole = self.builder.sub(stop, rest)
        yield self.vectors, start, whole
        yield Vectors(self.builder, self.vectors.scalar, lanes=1), whole, stop

    def pointers(self, *positions: int) -> list[ir.Value]:
        return [
            self._pointer(self._types[position], self.arguments[position]) for position in positions
        ]

    def members(self, position: int) -> list[ir.Value]:
        """Return the members of the tuple that is the kernel's argument at this position. An array
        is replaced by the address of its data."""
        whole, kinds = self.arguments[position], self._types[position].types
        values = [self.builder.extract_value(whole, i) for i in range(len(kinds))]
        return [
            self._pointer(kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, values)
        ]

    def is_set(self, number: ir.Value) -> ir.Value:
        return self.builder.icmp_signed("!=", number, ir.Constant(number.type, 0))

    def _pointer(self, kind: types.Array, value: ir.Value) -> ir.Value:
        array = self._context.make_array(kind)(self._context, self.builder, value)
        return array.data


def emitted(emit: Callable[[Call], Any], result: types.Type = types.void) -> Callable[..., Any]:
    """Return a function for compiled code, whose instructions are emitted by ``emit``. If the
    function returns a value, ``result`` is its type, and ``emit`` returns the LLVM value."""

    def codegen(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        arguments, kinds = cgutils.unpack_tuple(builder, given[0]), signature.args[0].types
        value = emit(Call(context, builder, kinds, arguments))
        return context.get_dummy_value() if result == types.void else value

    @intrinsic
    def function(typing, *arguments):  # type: ignore[no-untyped-def]
        return result(types.StarArgTuple([*map(types.unliteral, arguments)])), codegen

    made: Callable[..., Any] = function
    return made


def bits_of(x: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return three results: the bit patterns of x, the mask that clears the sign bit, and the bit
    pattern of infinity."""
    raise NotImplementedError  # numba uses the overload below


@overload(bits_of)
def _bits_by_type(x):  # type: ignore[no-untyped-def]
    if x.dtype == types.float32:
        return lambda x: (x.view(np.int32), np.int32(0x7FFFFFFF), np.int32(0x7F800000))
    return lambda x: (x.view(np.int64), np.int64(0x7FFFFFFFFFFFFFFF), np.int64(0x7FF0000000000000))


@njit
def cut_of(x, threshold):  # type: ignore[no-untyped-def]
    """Return the bit pattern of a threshold that is rounded to the dtype of x, but at least 1, the
    pattern of the smallest number above 0. NaN has a pattern above that of infinity."""
    rounded = np.full(1, 0.0 if threshold <= 0 else abs(threshold), x.dtype)  # NaN without a sign
    return np.intp(max(bits_of(rounded)[0][0], 1))


def signatures(
    arguments: str, result: types.Type = types.intp, given: Sequence[str] = ("",)
) -> list[Signature]:
    """Return numba signatures of a kernel, one for each float type and each string in ``given``.

    arguments : a letter for each argument: v a value, x values that are read, O values that are
        written, j indices that are read, J indices that are written, p a position or count, f a
        float64, I positions, S float64 totals, d a tuple. Arrays are 1-D and C-contiguous
    result : type of the result
    given : for each signature, the letters of the members of the tuple d
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
        for letters in given:
            kinds["d"] = types.Tuple([kinds[letter] for letter in letters])
            made.append(result(*(kinds[letter] for letter in arguments)))
    return made
