"""Intrinsics: functions whose instructions we write, because numba has no words for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature

from hvd_sparse.kernels.numba.vectors import WORD, Vectors


class Call:
    """A call of an intrinsic, whose instructions are to be written where the builder stands.

    Attributes
    ----------
    builder : writes the instructions
    arguments : the values of the call; of an array, see ``pointers``
    """

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
        """Return where the entries of these array arguments begin."""
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
        """Add an amount to one of the totals, float64."""
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
