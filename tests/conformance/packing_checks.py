"""The contracts of the kernels of codecs, against numpy's conversions and plain counting."""

from __future__ import annotations

from typing import Any

import numpy as np

CODES = np.arange(1 << 16, dtype=np.uint16)
LARGEST_BRAIN = 0x7F7F


def numbers() -> np.ndarray:
    """float32: bit patterns at random, the neighbourhood of every bound, and what lies halfway
    between two codes."""
    rng = np.random.default_rng(3)
    drawn = rng.integers(1 << 32, size=100_000, dtype=np.uint32).view(np.float32)
    edges = np.array(
        [0.0, 2.0**-149, 2.0**-126, 2.0**-25, 3 * 2.0**-25, 2.0**-14, 65504, 65519, 65520, 3.4e38],
        "f4",
    )
    edges = np.concatenate(
        [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))]
    )
    halves = CODES.view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    between = 0.5 * (halves[:-1] + halves[1:])
    everything = np.concatenate(
        [drawn, edges, -edges, halves, between, 1e-6 * rng.normal(size=1000).astype("f4")]
    )
    return everything[np.isfinite(everything)]


def written(encode: Any, values: np.ndarray, shift: int) -> np.ndarray:
    room = np.zeros(2 * values.size + shift, np.uint8)[shift:]
    encode(values, room.view(np.uint16))
    return room.view(np.uint16).copy()


def check_half_codes(kernels: Any) -> None:
    values = numbers()
    expected = np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
    for shift in (0, 1):
        assert written(kernels.half_codes, values, shift).tobytes() == expected.tobytes()
    assert written(kernels.half_codes, np.array([1e300, -2.0]), 0).tolist() == [0x7BFF, 0xC000]


def check_brain_codes(kernels: Any) -> None:
    values = numbers()
    for shift in (0, 1):
        codes = written(kernels.brain_codes, values, shift)
        back = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        assert (np.signbit(back) == np.signbit(values)).all()
        is_small = np.abs(values) < 2.0**-126
        assert not back[is_small & (np.abs(values) < 2.0**-126 * (1 - 2.0**-8))].any()
        inner = ~is_small & (codes & 0x7FFF != LARGEST_BRAIN)
        assert (
            np.abs(back - values)[inner] <= 2.0**-8 * np.abs(values[inner].astype(np.float64))
        ).all()
        assert (np.abs(back[~inner & ~is_small]) > 3.38e38).all()


def check_values(kernels: Any) -> None:
    """Every code of both formats, by itself."""
    halves, brains = CODES.view(np.float16), (CODES.astype(np.uint32) << 16).view(np.float32)
    is_brain = np.isfinite(brains) & ((brains == 0) | (np.abs(brains) >= 2.0**-126))
    for read, values, is_code in (
        (kernels.half_values, halves, np.isfinite(halves)),
        (kernels.brain_values, brains, is_brain),
    ):
        assert read(CODES[is_code]).tobytes() == values[is_code].astype(np.float32).tobytes()
        for code in CODES[~is_code]:
            assert read(np.array([0, code, 0], np.uint16)) is None


def check_blocks(kernels: Any) -> None:
    rng = np.random.default_rng(4)
    for numel, count in (
        (0, 0),
        (1, 1),
        (65_536, 65_536),
        (65_537, 65_537),
        (300_000, 17),
        (300_000, 90_000),
        (131_072, 0),
    ):
        indices = (
            np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)
            if numel
            else np.empty(0, np.uint32)
        )
        chunks = kernels.count_blocks(indices, numel, 12)
        assert chunks.tolist() == np.bincount(indices >> 12, minlength=-(-numel >> 12)).tolist()
        places = (indices & 4095).astype(np.uint16)
        joined = kernels.join_blocks(chunks.astype(np.uint16), places, 12)
        assert joined.tobytes() == indices.tobytes()
        counts = kernels.count_blocks(indices, numel)
        assert counts.tolist() == np.bincount(indices >> 16, minlength=-(-numel // 65_536)).tolist()
        positions = indices.astype(np.uint16)
        for width in (np.uint16, np.uint32):
            if counts.max(initial=0) <= np.iinfo(width).max:
                assert (
                    kernels.join_blocks(counts.astype(width), positions).tobytes()
                    == indices.tobytes()
                )
        for place in (0, count // 2, count - 2):
            if 0 <= place < count - 1 and indices[place] >> 16 == indices[place + 1] >> 16:
                swapped = positions.copy()
                swapped[[place, place + 1]] = swapped[[place + 1, place]]
                assert kernels.join_blocks(counts.astype(np.uint32), swapped) is None
                swapped[place] = swapped[place + 1]
                assert kernels.join_blocks(counts.astype(np.uint32), swapped) is None


def vectors_of_values() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    drawn = [rng.laplace(size=count) for count in (0, 1, 2, 3, 5, 63, 64, 65, 1_000)]
    drawn += [-np.ones(7), np.array([1e-30, -1e30, 3.0]), 10.0 ** rng.uniform(-20, 20, 500)]
    return [values.astype(dtype) for values in drawn for dtype in ("float32", "float64")]


def check_largest(kernels: Any) -> None:
    for values in vectors_of_values():
        assert kernels.largest_magnitude(values) == max(map(abs, values.tolist()), default=0.0)
    assert np.isnan(kernels.largest_magnitude(np.array([1.0, np.nan, 3.0], np.float32)))
    assert kernels.largest_magnitude(np.array([1.0, -np.inf])) == np.inf


def check_multiples(kernels: Any) -> None:
    """Ties to even, and nothing beyond the largest: by Python's own numbers."""
    halves = np.arange(-9, 10, dtype=np.float32) / 2
    assert kernels.multiples(halves, 1.0, 3).tolist() == [
        max(-3, min(3, round(half))) for half in halves.tolist()
    ]
    for values in vectors_of_values():
        for most in (7, 127):
            step = float(np.float32(0.03 * max(map(abs, values.tolist()), default=1.0)))
            quotients = (values / values.dtype.type(step)).tolist()
            found = kernels.multiples(values, step, most)
            assert found.dtype == np.int8
            assert found.tolist() == [max(-most, min(most, round(q))) for q in quotients]


def check_levels(kernels: Any) -> None:
    """Counts, sums and codes by whole numbers of Python, entry by entry."""
    for values in vectors_of_values():
        largest = max(map(abs, values.tolist()), default=1.0)
        scale = 2.0 ** (26 - np.frexp(largest)[1])
        found = [max(1, min(int(abs(v) * scale), (1 << 26) - 1)) for v in values.tolist()]
        for above in (0, 1, sum(found) // max(1, len(found)), 1 << 26):
            beyond = [multiple for multiple in found if multiple > above]
            assert kernels.sum_on_grid(values, scale, above) == (len(beyond), sum(beyond))
            codes = kernels.level_codes(values, scale, above)
            assert codes.dtype == np.uint8
            assert codes.tolist() == [
                (v < 0) + 2 * (multiple > above) for v, multiple in zip(values.tolist(), found)
            ]
        back = kernels.level_values(codes, 0.5, 3.0, np.dtype("<f4"))
        table = {0: 0.5, 1: -0.5, 2: 3.0, 3: -3.0}
        assert back.dtype == np.float32 and back.tolist() == [
            table[code] for code in codes.tolist()
        ]


def check_few_bits(kernels: Any) -> None:
    rng = np.random.default_rng(6)
    for width in (2, 4):
        for count in (0, 1, 2, 3, 4, 5, 127, 128, 1_001):
            numbers = rng.integers(256, size=count).astype(np.uint8)
            kept = [number % (1 << width) for number in numbers.tolist()]
            whole = sum(number << width * place for place, number in enumerate(kept))
            packed = kernels.pack_few(numbers, width)
            expected = whole.to_bytes(-(-count * width // 8), "little")
            assert packed.tobytes() == expected
            for shift in (0, 1):  # parts of messages begin anywhere
                there = np.frombuffer(b"\0" * shift + expected, np.uint8)[shift:]
                assert kernels.unpack_few(there, width, count).tolist() == kept
            spare = 8 * packed.size - count * width
            if spare:
                packed[-1] |= 128
                assert kernels.unpack_few(packed, width, count) is None


def lists_of_numbers() -> list[list[int]]:
    rng = np.random.default_rng(7)
    drawn = [rng.geometric(0.4, count) - 1 for count in (0, 1, 2, 31, 63, 64, 65, 128, 3_000)]
    drawn += [np.zeros(200, int), np.array([0, 63, 0, 64, 1, 1_000, 0, 128]), np.full(9, 63)]
    return [numbers.tolist() for numbers in drawn]


def check_unary(kernels: Any) -> None:
    """Bits by Python's own strings; ones too few or too many are refused, zeros at the end not."""
    for numbers in lists_of_numbers():
        bits = "".join("0" * number + "1" for number in numbers)
        expected = (int(bits[::-1], 2) if bits else 0).to_bytes(-(-len(bits) // 8), "little")
        assert kernels.pack_unary(np.array(numbers, np.uint32)).tobytes() == expected
        for before, behind in ((b"", b""), (b"\0", b"\0" * 9)):
            there = np.frombuffer(before + expected + behind, np.uint8)[len(before) :]
            back = kernels.unpack_unary(there, len(numbers))
            assert back.dtype == np.uint32 and back.tolist() == numbers
        for count in {0, len(numbers) // 2, len(numbers) - 1, len(numbers) + 1, 10**4}:
            if count >= 0 and count != len(numbers):
                assert kernels.unpack_unary(np.frombuffer(expected, np.uint8), count) is None


def check_gaps(kernels: Any) -> None:
    """Rests and quotients by Python's own numbers, and back; the last index has to lie within."""
    rng = np.random.default_rng(8)
    for numel, count in ((1, 1), (9, 9), (70, 1), (5_000, 100), (1 << 32, 1_000), (1 << 32, 0)):
        found = {0, numel - 1, *rng.integers(numel, size=count).tolist()} if count else set()
        indices = sorted(found)[-count:] if count else []
        gaps = [b - a - 1 for a, b in zip([-1, *indices], indices)]
        for shift in (0, 1, 5, 16, 30):
            for has_thirds in (False, True):
                modulus = (3 if has_thirds else 1) << shift
                rests, quotients = kernels.split_gaps(
                    np.array(indices, np.uint32), shift, has_thirds
                )
                assert rests.tolist() == [gap % modulus for gap in gaps]
                assert quotients.tolist() == [gap // modulus for gap in gaps]
                back = kernels.join_gaps(rests.copy(), quotients, modulus, numel)
                assert back.dtype == np.uint32 and back.tolist() == indices
                if indices:
                    assert kernels.join_gaps(rests, quotients, modulus, indices[-1]) is None
    most = np.full(3, 0xFFFFFFFF, np.uint32)
    assert kernels.join_gaps(most, most, 1 << 28, 1 << 32) is None


def check_bytes(kernels: Any) -> None:
    """Eight bits of a number from a place on, and back into another's zeros."""
    numbers = np.random.default_rng(10).integers(1 << 32, size=77, dtype=np.uint32)
    for shift in (0, 1, 8, 13, 24, 31):
        found = kernels.bytes_from(numbers, shift)
        assert found.dtype == np.uint8
        assert found.tolist() == [number >> shift & 255 for number in numbers.tolist()]
        there = np.ones(77, np.uint32)
        kernels.put_bytes(there, found, shift)
        kept = [(byte << shift & 0xFFFFFFFF) | 1 for byte in found.tolist()]
        assert there.tolist() == kept


def check_thirds(kernels: Any) -> None:
    rng = np.random.default_rng(9)
    for count in (0, 1, 2, 63, 64, 65, 1_000):
        drawn = (rng.integers(3, size=count), np.zeros(count), np.full(count, 2))
        for numbers in [list_.astype(np.uint8) for list_ in drawn]:
            is_more, is_two = kernels.split_thirds(numbers)
            assert is_more.tolist() == [number > 0 for number in numbers.tolist()]
            assert is_two.tolist() == [number == 2 for number in numbers.tolist() if number]
            back = kernels.join_thirds(is_more, is_two)
            assert back.dtype == np.uint8 and back.tolist() == numbers.tolist()


PACKING = (
    check_half_codes,
    check_brain_codes,
    check_values,
    check_blocks,
    check_largest,
    check_multiples,
    check_levels,
    check_few_bits,
    check_unary,
    check_gaps,
    check_bytes,
    check_thirds,
)
