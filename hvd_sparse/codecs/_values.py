"""Values of a selection as codes of a fixed width, for every codec with an option ``values``.

    float32    the values themselves, float64 for float64 gradients: exact
    float16    5 bits of exponent, 10 of mantissa; beyond 65504 the largest of that sign, below
               2^-25 zero
    bfloat16   8 bits of exponent, 7 of mantissa: float32's range; below 2^-126 zero
    int8       multiples, -127 to 127, of a step that is sent along: the largest magnitude / 127

The residual keeps the rounding, as memories subtract the values that the others decode.

The step is a float32 of at most 16 significant bits, rounded down, so that all multiples are exact;
0 where the largest magnitude is below 2^-100. The all-ones code of every format is a NaN, or -128,
which no value has: it marks entries that are not there (``missing_code``).
"""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse.checks import check_choice
from hvd_sparse.core.kernels.packing import Packers
from hvd_sparse.core.wire.frame import AS_TYPE, VALUE_FORMATS, Frame, need
from hvd_sparse.errors import CorruptPayload, InvalidOption

LEVELS = 127
STEP_BYTES = 4
SMALLEST = 2.0**-100
_LARGEST = float(np.finfo(np.float32).max)
_UNSIGNED: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def check_format(values: str, owner: str) -> None:
    """Raise InvalidOption unless the name is that of a format."""
    try:
        check_choice(values, f"values of {owner}", VALUE_FORMATS)
    except InvalidOption as error:
        raise InvalidOption(f"{error}; float32 sends float64 gradients as float64") from None


def code_bytes(name: str, value_bytes: int) -> int:
    """Return the width of a code, in bytes."""
    return {"float32": value_bytes, "float16": 2, "bfloat16": 2, "int8": 1}[name]


def prefix_bytes(name: str) -> int:
    """Return the bytes before the codes."""
    return STEP_BYTES if name == "int8" else 0


def missing_code(width: int) -> int:
    """Return the code that no value has."""
    return 0x80 if width == 1 else (1 << 8 * width) - 1


def write_values(values: np.ndarray, name: str, out: np.ndarray, kernels: Packers) -> None:
    """Write the prefix and the codes of float32 or float64 values.

    Parameters
    ----------
    values : float32 or float64 [count]
    name : the format
    out : uint8 [``values_bytes``], written
    kernels : of the engine
    """
    if name == "float32":
        out.view(_UNSIGNED[values.itemsize])[:] = values.view(f"u{values.itemsize}")
    elif name == "int8":
        step = _step_of(float(np.abs(values).max(initial=0)))
        out[:STEP_BYTES] = np.frombuffer(np.float32(step).astype("<f4").tobytes(), np.uint8)
        out[STEP_BYTES:] = _multiples(values, step)
    else:
        (kernels.half_codes if name == "float16" else kernels.brain_codes)(
            values, out.view(_UNSIGNED[2])
        )


def encode_values(values: np.ndarray, name: str, kernels: Packers) -> tuple[np.ndarray, np.ndarray]:
    """Return the prefix, uint8, and the codes, unsigned [count], of float32 or float64 values."""
    written = np.empty(values_bytes(values.size, name, values.itemsize), np.uint8)
    write_values(values, name, written, kernels)
    start = prefix_bytes(name)
    return written[:start], written[start:].view(_UNSIGNED[code_bytes(name, values.itemsize)])


def _step_of(largest: float) -> float:
    """Return the step for a largest magnitude.

    It is the same for the largest multiple that the magnitude decodes to, so that decoded values
    encode back to the same bytes.
    """
    if not largest >= SMALLEST:
        return 0.0
    # A step of 16 bits times 127 has at most 23: all multiples are exact in float32.
    mantissa, exponent = math.frexp(min(largest, _LARGEST) / LEVELS)
    step = math.ldexp(math.floor(mantissa * 2**16), exponent - 16)
    return step if LEVELS * step >= SMALLEST else 0.0


def _multiples(values: np.ndarray, step: float) -> np.ndarray:
    if step == 0:
        return np.zeros(values.size, np.uint8)
    quotients = np.rint(values / values.dtype.type(step))
    multiples: np.ndarray = np.clip(quotients, -LEVELS, LEVELS).astype(np.int8)
    return multiples.view(np.uint8)


def decode_values(
    prefix: np.ndarray, codes: np.ndarray, name: str, frame: Frame, kernels: Packers
) -> np.ndarray:
    """Return the values [count] of codes, in the frame's value type.

    Raises
    ------
    CorruptPayload : ``encode_values`` never writes these codes
    """
    if name == "int8":
        return _from_multiples(prefix, codes, frame)
    if name == "float32":
        values: np.ndarray = codes.view(frame.value_type)
        need(bool(np.isfinite(values).all()), "a payload has values that are NaN or Inf")
        return values
    codes = codes.astype(np.uint16, copy=False)
    short = kernels.half_values(codes) if name == "float16" else kernels.brain_values(codes)
    if short is None:
        raise CorruptPayload(
            "a payload has values that are NaN or Inf, or below 2^-126 in bfloat16"
        )
    return short.astype(frame.value_type, copy=False)


def _from_multiples(prefix: np.ndarray, codes: np.ndarray, frame: Frame) -> np.ndarray:
    step = float(prefix.view("<f4")[0])
    multiples = codes.view(np.int8)
    largest = max(int(multiples.max(initial=0)), -int(multiples.min(initial=0)))
    # Only what an encoder writes is taken: the largest value is always the 127th multiple.
    is_ours = (
        math.isfinite(step) and math.copysign(1.0, step) > 0 and largest == (LEVELS if step else 0)
    )
    need(
        is_ours and _step_of(LEVELS * step) == step,
        f"a payload has values in multiples of {step}, at most {largest}",
    )
    values: np.ndarray = multiples.astype(frame.value_type)
    values *= frame.value_type.type(step)
    return values


def value_codes(frame: Frame, offset: int, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the prefix and the codes that stand in a body from an offset on.

    The body's length has been checked.
    """
    start = offset + prefix_bytes(name)
    width = code_bytes(name, frame.value_type.itemsize)
    return frame.body[offset:start], frame.body[start : start + count * width].view(
        _UNSIGNED[width]
    )


def values_bytes(count: int, name: str, value_bytes: int) -> int:
    """Return the bytes of a prefix and ``count`` codes."""
    return prefix_bytes(name) + count * code_bytes(name, value_bytes)


def format_number(name: str) -> int:
    """Return the format's number in a frame's header."""
    return VALUE_FORMATS.get(name, AS_TYPE)
