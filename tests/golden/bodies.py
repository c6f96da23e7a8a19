"""The bodies of all codecs, read by plain Python, an entry at a time: shares no code with the
package.

Every reader gets (value letter, value format, numel, count, body) and gives (indices, values).
"""

from __future__ import annotations

import struct

WIDTHS = {"f": 4, "d": 8}
FORMATS = {1: 16, 2: 16, 3: 8, 4: 4, 5: 2}
"""Bits of a value, by the format's number."""
HEADS = {3: 4, 4: 4, 5: 8}
"""Bytes before the values."""
Entries = "tuple[tuple[int, ...], tuple[float, ...]]"


class Unreadable(Exception):
    """Bytes that are no frame or message, and why."""


def need(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Unreadable(otherwise)


def bits_of(data: bytes, wanted: int) -> list[int]:
    """The lowest bit of a byte first; what pads the last byte is zero."""
    need(len(data) == (wanted + 7) // 8, f"{wanted} bits do not fill {len(data)} bytes")
    bits = [byte >> place & 1 for byte in data for place in range(8)]
    need(not any(bits[wanted:]), "padding that is not zero")
    return bits[:wanted]


def number(bits: list[int]) -> int:
    return sum(bit << place for place, bit in enumerate(bits))


def finite(values: list[float]) -> tuple[float, ...]:
    need(
        all(abs(value) != float("inf") and value == value for value in values),
        "a value is NaN or Inf",
    )
    return tuple(values)


def value_width(letter: str, form: int) -> int:
    return FORMATS.get(form, 8 * WIDTHS[letter]) // 8


def values_size(letter: str, form: int, count: int) -> int:
    return HEADS.get(form, 0) + (count * FORMATS.get(form, 8 * WIDTHS[letter]) + 7) // 8


def few_bits(width: int, count: int, data: bytes) -> list[int]:
    bits = bits_of(data, width * count)
    return [number(bits[width * i : width * (i + 1)]) for i in range(count)]


def read_values(letter: str, form: int, count: int, data: bytes) -> tuple[float, ...]:
    """Values in one of the six formats."""
    need(
        len(data) == values_size(letter, form, count),
        f"{count} values do not fill {len(data)} bytes",
    )
    if form in (3, 4):
        step, most = struct.unpack("<f", data[:4])[0], 127 if form == 3 else 7
        if form == 3:
            multiples = list(struct.unpack(f"<{count}b", data[4:]))
        else:
            multiples = [code - 16 if code > 7 else code for code in few_bits(4, count, data[4:])]
        need(
            max(map(abs, multiples), default=0) == (most if step else 0),
            f"the largest multiple is not {most}",
        )
        return finite([step * multiple for multiple in multiples])
    if form == 5:
        levels, codes = struct.unpack("<ff", data[:8]), few_bits(2, count, data[8:])
        need(bool(levels[1]) == any(code > 1 for code in codes), "a level that no value has")
        return finite([levels[code >> 1] * (-1 if code & 1 else 1) for code in codes])
    if form == 2:  # the upper half of a float32
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    return finite(
        list(struct.unpack(f"<{count}{'e' if form == 1 else 'f' if form == 2 else letter}", data))
    )


def ascending(indices: list[int], numel: int) -> tuple[int, ...]:
    need(all(indices[i] < indices[i + 1] for i in range(len(indices) - 1)), "indices do not ascend")
    need(all(index < numel for index in indices), f"an index beyond {numel} entries")
    return tuple(indices)


def split_values(
    letter: str, form: int, count: int, body: bytes
) -> tuple[bytes, tuple[float, ...]]:
    """What stands before the values, and the values."""
    size = values_size(letter, form, count)
    need(size <= len(body), f"{count} values in {len(body)} bytes")
    offset = len(body) - size
    return body[:offset], read_values(letter, form, count, body[offset:])


def index_value(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    indices, values = split_values(letter, form, count, body)
    need(len(indices) == 4 * count, f"{count} indices do not fill {len(indices)} bytes")
    return ascending(list(struct.unpack(f"<{count}I", indices)), numel), values


def block16(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    blocks = (numel + 65_535) // 65_536
    wide = len(rest) - 2 * count == 4 * blocks and blocks > 0
    layout = f"<{blocks}{'I' if wide else 'H'}{count}H"
    need(
        struct.calcsize(layout) == len(rest),
        f"{blocks} counts and {count} positions in {len(rest)} bytes",
    )
    numbers = struct.unpack(layout, rest)
    counts, positions = numbers[:blocks], list(numbers[blocks:])
    need(sum(counts) == count, "the counts do not add up")
    indices = [
        65_536 * block + positions.pop(0)
        for block, entries in enumerate(counts)
        for _ in range(entries)
    ]
    return ascending(indices, numel), values


def chunk12(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    chunks = (numel + 4_095) // 4_096
    counts, low = rest[: 2 * chunks], rest[2 * chunks : 2 * chunks + count]
    high = few_bits(4, count, rest[2 * chunks + count :])
    positions = [256 * upper + lower for upper, lower in zip(high, low)]
    numbers = struct.unpack(f"<{chunks}H", counts)
    need(len(low) == count == sum(numbers), "the counts do not add up")
    starts = [4_096 * chunk for chunk, entries in enumerate(numbers) for _ in range(entries)]
    return ascending([start + place for start, place in zip(starts, positions)], numel), values


def gaps(count: int, numel: int, data: bytes) -> tuple[int, ...]:
    """Golomb's code in planes."""
    if count == 0:
        need(not data, "gaps of no entries")
        return ()
    shift, thirds = modulus(1 - count / numel)
    rests, place = [0] * count, 0
    for width in (16, 8, 4, 2, 1):
        if shift & width:
            size = (count * width + 7) // 8
            bits, data = bits_of(data[:size], count * width), data[size:]
            for i in range(count):
                rests[i] |= number(bits[i * width : (i + 1) * width]) << place
            place += width
    if thirds:
        size = (count + 7) // 8
        more, data = bits_of(data[:size], count), data[size:]
        size = (sum(more) + 7) // 8
        twos, data = bits_of(data[:size], sum(more)), data[size:]
        for i in range(count):
            rests[i] += (1 + twos.pop(0) << shift) if more[i] else 0
    ends = [place for place, bit in enumerate(bits_of(data, 8 * len(data))) if bit]
    need(
        len(ends) == count and len(data) == ends[-1] // 8 + 1,
        "quotients that do not fit the entries",
    )
    indices, index = [], -1
    for before, end, rest in zip([-1, *ends], ends, rests):
        index += (end - before - 1) * (3 if thirds else 1) * 2**shift + rest + 1
        indices.append(index)
    return ascending(indices, numel)


def modulus(miss: float) -> tuple[int, bool]:
    """(b, whether three times 2^b) by the chance that an entry is not sent."""
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
    need(words * (2 + width) == len(body), "half a word")
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
    need(
        len(indices) == count and (not indices or indices[-1] == index),
        "words that do not fit the entries",
    )
    return ascending(indices, numel), finite(values)


def bitmap(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    rest, values = split_values(letter, form, count, body)
    indices = tuple(i for i, bit in enumerate(bits_of(rest, numel)) if bit)
    need(len(indices) == count, "a bitmap of more or fewer entries")
    return indices, values


def dense(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    head, width = (4 if form == 3 else 0), value_width(letter, form)
    need(len(body) == head + numel * width, f"{numel} values do not fill {len(body)} bytes")
    codes = [body[head + width * i : head + width * (i + 1)] for i in range(numel)]
    missing = b"\x80" if form == 3 else b"\xff" * width
    indices = tuple(i for i, code in enumerate(codes) if code != missing)
    need(len(indices) == count, "more or fewer values than entries")
    return indices, read_values(
        letter, form, count, body[:head] + b"".join(codes[i] for i in indices)
    )


def signed(letter: str, count: int, body: bytes) -> tuple[float, bytes]:
    """The magnitude that stands first, and what follows it."""
    need(len(body) >= WIDTHS[letter], "no magnitude")
    (scale,) = struct.unpack("<" + letter, body[: WIDTHS[letter]])
    need(
        0 < scale < float("inf") if count else body[: WIDTHS[letter]] == bytes(WIDTHS[letter]),
        f"magnitude {scale}",
    )
    return scale, body[WIDTHS[letter] :]


def with_signs(scale: float, negative: list[int]) -> tuple[float, ...]:
    return tuple(-scale if bit else scale for bit in negative)


def sign_index(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    need(len(rest) == 4 * count, f"{count} words do not fill {len(rest)} bytes")
    words = struct.unpack(f"<{count}I", rest)
    return ascending([word >> 1 for word in words], numel), with_signs(
        scale, [word & 1 for word in words]
    )


def sign_mean(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    offset = len(rest) - (count + 7) // 8
    need(offset >= 0, "no room for the signs")
    return gaps(count, numel, rest[:offset]), with_signs(scale, bits_of(rest[offset:], count))


def one_sign(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    need(bool(rest) and rest[0] <= 2, "signs of no kind")
    kind, rest = rest[0], rest[1:]
    offset = len(rest) - ((count + 7) // 8 if kind == 0 else 0)
    need(offset >= 0, "no room for the signs")
    negative = bits_of(rest[offset:], count) if kind == 0 else [kind - 1] * count
    need(kind > 0 or 0 < sum(negative) < count, "signs that are all alike")
    need(count > 0 or kind == 1, "nothing has no sign")
    return gaps(count, numel, rest[:offset]), with_signs(scale, negative)


def ternary(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    narrow, wide = (numel + 63) // 64, (numel + 16_383) // 16_384
    is_narrow = count + narrow <= 2 * (count + wide)
    bins, length, sort = (narrow, 64, "B") if is_narrow else (wide, 16_384, "H")
    layout = f"<{bins}{sort}{count}{sort}"
    need(
        struct.calcsize(layout) == len(rest),
        f"{bins} counts and {count} words in {len(rest)} bytes",
    )
    numbers = struct.unpack(layout, rest)
    words = list(numbers[bins:])
    need(sum(numbers[:bins]) == count, "the counts do not add up")
    placed = [
        (length * place, words.pop(0))
        for place, entries in enumerate(numbers[:bins])
        for _ in range(entries)
    ]
    need(all(word & 3 in (1, 2) for _, word in placed), "a word without a sign")
    indices = ascending([start + (word >> 2) for start, word in placed], numel)
    return indices, with_signs(scale, [word & 2 for _, word in placed])


def one_bit(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    indices = tuple(range(numel))
    if count < numel:
        size = (numel + 7) // 8
        indices = tuple(i for i, bit in enumerate(bits_of(rest[:size], numel)) if bit)
        rest = rest[size:]
    need(len(indices) == count, "more or fewer entries than announced")
    return indices, with_signs(scale, bits_of(rest, count))


def two_bit(letter: str, form: int, numel: int, count: int, body: bytes) -> Entries:
    scale, rest = signed(letter, count, body)
    need(len(rest) == (numel + 3) // 4, f"{numel} signs do not fill {len(rest)} bytes")
    signs = [byte >> place & 3 for byte in rest for place in (0, 2, 4, 6)]
    need(not any(signs[numel:]) and 3 not in signs, "a sign of no kind")
    indices = tuple(i for i, sign in enumerate(signs) if sign)
    need(len(indices) == count, "more or fewer entries than announced")
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
"""By the codec's number in a frame's header."""
