"""Types of the compiled functions: each is compiled for float32 and float64 before anybody calls
it."""

from __future__ import annotations

from typing import Any

from numba import types


def signatures(arguments: str, result: Any = types.intp) -> list[Any]:
    """One signature a float type.

    arguments : a letter each: v a value, x values read, O values written, j indices read, J indices
        written, p a position or count, I positions written, S float64 totals written; vectors are
        1-D and C-contiguous
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
            "I": types.Array(types.intp, 1, "C"),
            "S": types.Array(types.float64, 1, "C"),
        }
        made.append(result(*(kinds[letter] for letter in arguments)))
    return made
