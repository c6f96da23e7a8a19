"""Reads the bodies of all codecs in plain Python, one entry after the other, and shares no code
with the package.

Every reader gets (value letter, value format, numel, count, body) and returns (indices, values).
Readers expect valid bytes. That invalid bytes are refused is tested elsewhere, with the package.
"""

from __future__ import annotations

import struct

WIDTHS = {"f": 4, "d": 8}
FORMATS = {1: 16, 2: 16, 3: 8, 4: 4, 5: 2}
HEADS = {3: 4, 4: 4, 5: 8}
Entries = "tuple[tuple[int, ...], tuple[float, ...]]"


def bits_of(data: bytes) -> list[int]:
    return [byte >> place & 1 for byte in data for place in range(8)]


def number(bits: list[int]) -> int:
    return sum(bit << place for place, bit in enumerate(bits))


def value_bits(letter: str, form: int) -> int:
    return FORMATS.get(form, 8 * WIDTHS[letter])


def numbers(width: int, count: int, data: bytes) -> list[int]:
    bits = bits_of(data)
    return [number(bits[width * i : width * (i + 1)]) for i in range(count)]


def read_values(letter: str, form: int, count: int, data: bytes) -> tuple[float, ...]:
    if form == 3:
        step, *multiples = struct.unpack(f"<f{count}b", data)
        return tuple(step * multiple for multiple in multiples)
    if form == 4:
        codes = numbers(4, count, data[4:])
        step = struct.unpack("<f", data[:4])[0]
        return tuple(step * (code - 16 if code > 7 else code) for code in codes)
    if form == 5:
        levels = struct.unpack("<ff", data[:8])
        codes = numbers(2, count, data[8:])
        return tuple(levels[code >> 1] * (-1 if code & 1 else 1) for code in codes)
    if form == 2:  # the upper half of a float32
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    kind = {1: "e", 2: "f"}.get(form, letter)
    return struct.unpack(f"<{count}{kind}", data)


def split_values(
    letter: str, form: int, count: int, body: bytes
) -> tuple[bytes, tuple[float, ...]]:
    size = HEADS.get(form, 0) + (count * value_bits(letter, form) + 7) // 8
    offset = len(body) - size
    return body[:offset], read_values(letter, form, count, body[offset:])


def index_value(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    indices, values = split_values(letter, form, count, body)
    return struct.unpack(f"<{count}I", indices), values


def block16(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    blocks = (numel + 65_535) // 65_536
    wide = len(rest) - 2 * count == 4 * blocks and blocks > 0
    found = struct.unpack(f"<{blocks}{'I' if wide else 'H'}{count}H", rest)
    return placed(found[:blocks], found[blocks:], 65_536), values


def placed(counts: tuple[int, ...], positions: tuple[int, ...], length: int) -> tuple[int, ...]:
    starts = [length * at for at, entries in enumerate(counts) for _ in range(entries)]
    return tuple(start + position for start, position in zip(starts, positions, strict=True))


def chunk12(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    chunks = (numel + 4_095) // 4_096
    counts = struct.unpack(f"<{chunks}H", rest[: 2 * chunks])
    low, high = rest[2 * chunks : 2 * chunks + count], rest[2 * chunks + count :]
    upper = numbers(4, count, high)
    positions = tuple(256 * more + lower for more, lower in zip(upper, low, strict=True))
    return placed(counts, positions, 4_096), values


def gaps(count: int, numel: int, data: bytes) -> tuple[int, ...]:
    if count == 0:
        return ()
    shift, thirds = modulus(1 - count / numel)
    rests, place = [0] * count, 0
    for width in (16, 8, 4, 2, 1):
        if shift & width:
            size = (count * width + 7) // 8
            plane, data = numbers(width, count, data[:size]), data[size:]
            rests = [rest | bits << place for rest, bits in zip(rests, plane)]
            place += width
    if thirds:
        size = (count + 7) // 8
        more, data = bits_of(data[:size])[:count], data[size:]
        size = (sum(more) + 7) // 8
        twos, data = bits_of(data[:size]), data[size:]
        for i in range(count):
            rests[i] += (1 + twos.pop(0) << shift) if more[i] else 0
    ends = [place for place, bit in enumerate(bits_of(data)) if bit]
    indices, index = [], -1
    for before, end, rest in zip([-1, *ends], ends, rests):
        index += (end - before - 1) * (3 if thirds else 1) * 2**shift + rest + 1
        indices.append(index)
    return tuple(indices)


def modulus(miss: float) -> tuple[int, bool]:
    """Return (b, whether the modulus is 3 * 2^b), from the probability that an entry is unsent."""
    if miss < 0.618034:
        return 0, False
    shift = 0
    while miss >= 0.819173:
        miss, shift = miss * miss, shift + 1
    return (shift + 1, False) if miss < 0.754878 else (shift, True)


def golomb(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    return gaps(count, numel, rest), values


def run16(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    width = WIDTHS[letter]
    words = len(body) // (2 + width)
    runs = struct.unpack(f"<{words}H", body[: 2 * words])
    codes = [body[2 * words + width * i : 2 * words + width * (i + 1)] for i in range(words)]
    indices, values, index = [], [], -1
    for run, code in zip(runs, codes):
        index += run + 1
        if run == 65_535 and code == bytes(width):
            continue
        indices.append(index)
        is_zero = run == 65_535 and code == b"\xff" * width
        values.append(0.0 if is_zero else struct.unpack("<" + letter, code)[0])
    return tuple(indices), tuple(values)


def set_bits(data: bytes) -> tuple[int, ...]:
    return tuple(i for i, bit in enumerate(bits_of(data)) if bit)


def bitmap(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    return set_bits(rest), values


def dense(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    head, width = (4 if form == 3 else 0), value_bits(letter, form) // 8
    codes = [body[head + width * i : head + width * (i + 1)] for i in range(numel)]
    missing = b"\x80" if form == 3 else b"\xff" * width
    indices = tuple(i for i, code in enumerate(codes) if code != missing)
    sent = body[:head] + b"".join(codes[i] for i in indices)
    return indices, read_values(letter, form, count, sent)


def signed(letter: str, body: bytes) -> tuple[float, bytes]:
    return struct.unpack("<" + letter, body[: WIDTHS[letter]])[0], body[WIDTHS[letter] :]


def with_signs(scale: float, negative: list[int]) -> tuple[float, ...]:
    return tuple(-scale if bit else scale for bit in negative)


def sign_index(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    words = struct.unpack(f"<{count}I", rest)
    return tuple(word >> 1 for word in words), with_signs(scale, [word & 1 for word in words])


def sign_mean(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    offset = len(rest) - (count + 7) // 8
    return gaps(count, numel, rest[:offset]), with_signs(scale, bits_of(rest[offset:])[:count])


def one_sign(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    kind, rest = rest[0], rest[1:]
    offset = len(rest) - ((count + 7) // 8 if kind == 0 else 0)
    negative = bits_of(rest[offset:])[:count] if kind == 0 else [kind - 1] * count
    return gaps(count, numel, rest[:offset]), with_signs(scale, negative)


def ternary(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    narrow, wide = (numel + 63) // 64, (numel + 16_383) // 16_384
    is_narrow = count + narrow <= 2 * (count + wide)
    bins, length, sort = (narrow, 64, "B") if is_narrow else (wide, 16_384, "H")
    found = struct.unpack(f"<{bins}{sort}{count}{sort}", rest)
    words = found[bins:]
    indices = placed(found[:bins], tuple(word >> 2 for word in words), length)
    return indices, with_signs(scale, [word & 2 for word in words])


def one_bit(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    indices = tuple(range(numel))
    if count < numel:
        size = (numel + 7) // 8
        indices, rest = set_bits(rest[:size]), rest[size:]
    return indices, with_signs(scale, bits_of(rest)[:count])


def two_bit(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, body)
    signs = numbers(2, numel, rest)
    indices = tuple(i for i, sign in enumerate(signs) if sign)
    return indices, with_signs(scale, [signs[i] == 2 for i in indices])


READERS = {
    1: index_value,
    2: block16,
    3: golomb,
    4: run16,
    5: bitmap,
    6: dense,
    7: sign_index,
    8: sign_mean,
    9: ternary,
    10: one_bit,
    11: two_bit,
    13: chunk12,
    14: one_sign,
}
