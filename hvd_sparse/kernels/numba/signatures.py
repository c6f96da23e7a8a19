"""Types of the compiled functions, which are compiled for float32 and float64 before any call."""

from __future__ import annotations

from numba import types
from numba.core.typing.templates import Signature


def signatures(arguments: str, result: types.Type = types.intp) -> list[Signature]:
    """Return one signature a float type.

    Parameters
    ----------
    arguments : a letter each: v a value, x values read, O values written, j indices read, J indices
        written, p a position or count, f a float64, I positions written, S float64 totals
        written; vectors are 1-D and C-contiguous
    result : numba type of the result
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
