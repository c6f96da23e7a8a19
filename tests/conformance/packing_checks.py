"""The contracts of the kernels of codecs, against numpy's own conversions and against plain
counting."""

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
    """The codes, at an address that suits them or not."""
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


PACKING = (check_half_codes, check_brain_codes, check_values, check_blocks)
