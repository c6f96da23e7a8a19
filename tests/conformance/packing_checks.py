"""Checks of the codecs' kernels against numpy's conversions and simple counting."""

import numpy as np

from hvd_sparse.kernels import reference

CODES = np.arange(1 << 16, dtype=np.uint16)
LARGEST_BRAIN = 0x7F7F


def numbers():
    """Return float32 numbers: random bit patterns, numbers near every bound, and numbers halfway
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


def check_brain_codes(kernels):
    values = numbers()
    codes = kernels.brain_codes(values)
    back = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (np.signbit(back) == np.signbit(values)).all()
    is_small = np.abs(values) < 2.0**-126
    assert not back[is_small & (np.abs(values) < 2.0**-126 * (1 - 2.0**-8))].any()
    inner = ~is_small & (codes & 0x7FFF != LARGEST_BRAIN)
    halfway = np.ldexp(2.0**-9, np.frexp(values[inner])[1])  # between the two nearest codes
    assert (np.abs(back - values)[inner] <= halfway).all()
    assert (np.abs(back[~inner & ~is_small]) > 3.38e38).all()


def check_brain_values(kernels):
    values = (CODES.astype(np.uint32) << 16).view(np.float32)
    is_code = np.isfinite(values) & ((values == 0) | (np.abs(values) >= 2.0**-126))
    assert kernels.brain_values(CODES[is_code]).tobytes() == values[is_code].tobytes()
    for code in CODES[~is_code]:
        assert kernels.brain_values(np.array([0, code, 0], np.uint16)) is None


def check_blocks(kernels):
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
        indices = np.sort(rng.permutation(numel)[:count]).astype(np.uint32)
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


def check_few_bits(kernels):
    rng = np.random.default_rng(6)
    for width in (1, 2, 4):
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


def lists_of_indices():
    """Return pairs of tensor length and indices. They cover all numbers of bit planes, both kinds
    of modulus, counts near multiples of 64, lists without gaps, and gaps that make whole words of
    the unary part zero."""
    rng = np.random.default_rng(8)
    drawn = [(numel, [0]) for numel in (1, 70, 3_000, 1 << 32)]
    drawn += [(numel, [numel - 1]) for numel in (70, 1 << 20, 1 << 32)]
    drawn += [(200, list(range(200))), (9, [0, 1, 2, 8]), (1 << 32, [0, (1 << 32) - 1])]
    # The modulus is about 0.7 numel / count.
    for count in (2, 31, 63, 64, 65, 128, 1_000):
        for share in (0.9, 0.5, 0.3, 0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6):
            numel = min(1 << 32, int(count / share))
            found = set(rng.integers(numel, size=count).tolist())
            drawn.append((numel, sorted(found)))
    drawn.append((40_000, [*range(100), 39_000, *range(39_990, 40_000)]))
    return drawn


def check_gaps(kernels):
    """Compare the code of gaps with the reference's, and read it. Decoding must read no other
    bytes."""
    for numel, indices in lists_of_indices():
        given = np.array(indices, np.uint32)
        packed = kernels.pack_gaps(given, numel).tobytes()
        assert packed == reference.pack_gaps(given, numel).tobytes()
        for before in (b"", b"\0"):  # parts of messages begin anywhere
            there = np.frombuffer(before + packed, np.uint8)[len(before) :]
            back = kernels.unpack_gaps(there, len(indices), numel)
            assert back.dtype == np.uint32 and back.tolist() == indices
        for other in (packed[:-1], packed + b"\0", packed + b"\1", b""):
            assert kernels.unpack_gaps(np.frombuffer(other, np.uint8), len(indices), numel) is None


PACKING = (check_brain_codes, check_brain_values, check_blocks, check_few_bits, check_gaps)
