"""Formats of values: codes of a fixed width, for every codec with an option ``values``.

    float32    the values themselves, float64 for float64 gradients: exact
    float16    5 bits of exponent, 10 of mantissa; clipped to +-65504; below 2^-25 zero
    bfloat16   8 bits of exponent, 7 of mantissa: the range of float32; below 2^-126 zero
    int8       multiples, -127 to 127, of a step that is sent with them: the largest magnitude / 127
    int4       multiples, -7 to 7, of the largest magnitude / 7; two codes a byte
    int2       a sign, and one of two magnitudes that are sent with them (``_levels``); four codes a
               byte; exact zeros are not sent

Memories subtract the decoded values, so the residual keeps the rounding errors.

The step is a float32 of at most 16 significant bits, rounded down, so that all multiples are exact.
It is 0 if the largest magnitude is below 2^-100. In formats of whole bytes one code is unused, a
NaN with all bits set, or -128: it marks missing entries (``missing_code``).
"""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse.checks import check_choice
from hvd_sparse.codecs._bits import unpack
from hvd_sparse.codecs._levels import from_levels, to_levels
from hvd_sparse.errors import CorruptPayload, InvalidOption
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.wire.frame import AS_TYPE, VALUE_FORMATS, Frame, need

LARGEST_MULTIPLE = {"int8": 127, "int4": 7}
STEP_BYTES = 4
WHOLE_BYTES = ("float32", "float16", "bfloat16", "int8")
"""Formats whose codes are whole bytes; every codec accepts them."""

ALL_FORMATS = tuple(VALUE_FORMATS)
SMALLEST = 2.0**-100
_LARGEST = float(np.finfo(np.float32).max)
_UNSIGNED: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


def check_format(values: str, owner: str, formats: tuple[str, ...] = WHOLE_BYTES) -> None:
    """Raise InvalidOption unless ``values`` is one of the formats."""
    try:
        check_choice(values, f"values of {owner}", formats)
    except InvalidOption as error:
        raise InvalidOption(f"{error}; float32 keeps float64 gradients exact") from None


def code_bits(name: str, value_bytes: int) -> int:
    """Return the width of a code in bits."""
    return {"float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "int2": 2}.get(
        name, 8 * value_bytes
    )


def prefix_bytes(name: str) -> int:
    """Return the bytes of the step or levels, which precede the codes."""
    return {"int8": STEP_BYTES, "int4": STEP_BYTES, "int2": 2 * STEP_BYTES}.get(name, 0)


def missing_code(width: int) -> int:
    """Return the unused code of a format, by its width in bytes."""
    return 0x80 if width == 1 else (1 << 8 * width) - 1


def write_values(values: np.ndarray, name: str, out: np.ndarray, kernels: Packers) -> None:
    """Write the prefix and the codes of values into ``out``.

    Parameters
    ----------
    values : float32 or float64 [count]
    name : the format
    out : uint8 [``values_bytes``]
    kernels : the engine's packers
    """
    if name == "float32":
        out.view(_UNSIGNED[values.itemsize])[:] = values.view(f"u{values.itemsize}")
    elif name == "int2":
        levels, codes = to_levels(values, kernels)
        start = prefix_bytes(name)
        out[:start] = levels.view(np.uint8)
        out[start:] = kernels.pack_few(codes, 2)
    elif name in LARGEST_MULTIPLE:
        most = LARGEST_MULTIPLE[name]
        step = _step_of(kernels.largest_magnitude(values), most)
        out[:STEP_BYTES] = np.frombuffer(np.float32(step).astype("<f4").tobytes(), np.uint8)
        multiples: np.ndarray = np.zeros(values.size, np.uint8)
        if step:
            multiples = kernels.multiples(values, step, most).view(np.uint8)
        out[STEP_BYTES:] = multiples if name == "int8" else kernels.pack_few(multiples, 4)
    else:
        (kernels.half_codes if name == "float16" else kernels.brain_codes)(
            values, out.view(_UNSIGNED[2])
        )


def encode_values(values: np.ndarray, name: str, kernels: Packers) -> tuple[np.ndarray, np.ndarray]:
    """Return the prefix, uint8, and the codes, unsigned [count], in a format of whole bytes."""
    written = np.empty(values_bytes(values.size, name, values.itemsize), np.uint8)
    write_values(values, name, written, kernels)
    start = prefix_bytes(name)
    return written[:start], written[start:].view(_UNSIGNED[code_bits(name, values.itemsize) // 8])


def _step_of(largest: float, most: int) -> float:
    """Return the step for a largest magnitude.

    The decoded largest magnitude has the same step, so decoded values encode to the same bytes.
    """
    if not largest >= SMALLEST:
        return 0.0
    # A step of 16 bits times 127 has at most 23 bits, so all multiples are exact in float32.
    mantissa, exponent = math.frexp(min(largest, _LARGEST) / most)
    step = math.ldexp(math.floor(mantissa * 2**16), exponent - 16)
    return step if most * step >= SMALLEST else 0.0


def decode_values(
    prefix: np.ndarray, codes: np.ndarray, name: str, frame: Frame, kernels: Packers
) -> np.ndarray:
    """Return the values [count] that the codes stand for, in the frame's value type.

    Raises
    ------
    CorruptPayload : ``encode_values`` cannot have written these codes
    """
    if name == "int2":
        return from_levels(prefix.view("<f4"), codes, frame.value_type, kernels)
    if name in LARGEST_MULTIPLE:
        # Extend the sign of 4-bit codes.
        multiples = codes if name == "int8" else (codes ^ np.uint8(8)) - np.uint8(8)
        return _from_multiples(prefix, multiples, frame, LARGEST_MULTIPLE[name])
    if name == "float32":
        values: np.ndarray = codes.view(frame.value_type)
        need(bool(np.isfinite(values).all()), "a payload has NaN or Inf among its values")
        return values
    codes = codes.astype(np.uint16, copy=False)
    short = kernels.half_values(codes) if name == "float16" else kernels.brain_values(codes)
    if short is None:
        raise CorruptPayload(
            "a payload has NaN or Inf among its values, or magnitudes below 2^-126 in bfloat16"
        )
    return short.astype(frame.value_type, copy=False)


def _from_multiples(prefix: np.ndarray, codes: np.ndarray, frame: Frame, most: int) -> np.ndarray:
    step = float(prefix.view("<f4")[0])
    multiples = codes.view(np.int8)
    largest = max(int(multiples.max(initial=0)), -int(multiples.min(initial=0)))
    # The encoder always writes the largest magnitude as the largest multiple.
    is_ours = (
        math.isfinite(step) and math.copysign(1.0, step) > 0 and largest == (most if step else 0)
    )
    need(
        is_ours and _step_of(most * step, most) == step,
        f"a payload has the step {step} with multiples up to {largest}, which no encoder writes",
    )
    values: np.ndarray = multiples.astype(frame.value_type)
    values *= frame.value_type.type(step)
    return values


def value_codes(
    frame: Frame, offset: int, count: int, name: str, kernels: Packers
) -> tuple[np.ndarray, np.ndarray]:
    """Return the prefix and the codes from ``offset`` in the body.

    The caller has checked the body's length.
    """
    start = offset + prefix_bytes(name)
    width = code_bits(name, frame.value_type.itemsize)
    codes = frame.body[start : start + packed_bytes(count, width)]
    if width < 8:
        return frame.body[offset:start], unpack(codes, width, count, kernels)
    return frame.body[offset:start], codes.view(_UNSIGNED[width // 8])


def packed_bytes(count: int, width: int) -> int:
    """Return the bytes of ``count`` codes of ``width`` bits."""
    return -(-count * width // 8)


def values_bytes(count: int, name: str, value_bytes: int) -> int:
    """Return the bytes of a prefix and ``count`` codes."""
    return prefix_bytes(name) + packed_bytes(count, code_bits(name, value_bytes))


def format_number(name: str) -> int:
    """Return the format's number in a frame's header."""
    return VALUE_FORMATS.get(name, AS_TYPE)
