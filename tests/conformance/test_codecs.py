"""Every codec gives selections back as it promises, and reads nothing but what it wrote."""

import contextlib
import tracemalloc
from dataclasses import replace

import cases
import numpy as np
import pytest
from conformance.codec_checks import (
    check_edges,
    check_refuses,
    check_refuses_damage,
    check_round_trip,
    largest_numel,
    selection_of,
)
from conformance.forgeries import FORGERIES, TWO, forged
from conformance.fuzzing import check_damaged, check_frame, seeds, targets
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.codecs.contract import SignCodec
from hvd_sparse.errors import CorruptPayload, InvalidOption
from hvd_sparse.registry import CODECS
from hvd_sparse.types import INDEX_LIMIT, Selection
from hvd_sparse.wire.frame import HEADER_BYTES, VALUE_FORMATS

MADE = [case.create(CODECS) for case in cases.CODECS]
codecs = pytest.mark.parametrize("codec", MADE, ids=map(str, cases.CODECS))
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
TARGETS = {name: (check, repair) for name, check, repair in targets()}
BOUND_BYTES = 8 << 20
EXPONENT = {4: np.uint32(0x7F800000), 8: np.uint64(0x7FF0000000000000)}


@st.composite
def selections(draw, largest):
    numel = draw(st.one_of(st.integers(1, 40), st.integers(1, largest)))
    indices = sorted(draw(st.sets(st.integers(0, numel - 1), max_size=40)))
    width = draw(st.sampled_from([4, 8]))
    bits = draw(st.binary(min_size=width * len(indices), max_size=width * len(indices)))
    codes = np.frombuffer(bits, f"u{width}").copy()
    codes[codes & EXPONENT[width] == EXPONENT[width]] ^= EXPONENT[width]
    return Selection(np.array(indices, np.uint32), codes.view(f"f{width}"), numel)


@codecs
@given(data=st.data())
def test_a_selection_comes_back_as_promised(codec, data):
    check_round_trip(codec, data.draw(selections(min(largest_numel(codec), INDEX_LIMIT - 1))))


@pytest.mark.parametrize("codec", [c for c in MADE if isinstance(c, SignCodec)], ids=lambda c: c.id)
@dtypes
def test_signs_are_sent_with_the_mean_of_the_sent_magnitudes(codec, dtype):
    given = selection_of(range(0, 300, 5), 300, dtype)
    values = np.resize(np.array([1, -2, 0, 3, -10, 0], dtype), given.count)
    decoded = codec.decode(codec.encode(replace(given, values=values)))
    is_sent = values != 0  # the mean of 1, 2, 3 and 10 is 4
    assert np.array_equal(decoded.indices, given.indices[is_sent])
    assert np.array_equal(decoded.values, 4 * np.sign(values[is_sent]))


@codecs
@dtypes
def test_edges_and_the_longest_tensor_come_back(codec, dtype):
    check_edges(codec, dtype)


@codecs
@dtypes
@pytest.mark.parametrize("indices", [(), (3,), (0, 4, 11)], ids=str)
def test_truncations_and_changed_bytes_are_refused(codec, dtype, indices):
    check_refuses_damage(codec, selection_of(indices, 12, dtype))


@pytest.mark.parametrize(("codec", "name"), FORGERIES)
def test_impossible_payloads_are_refused_though_their_checksum_is_right(codec, name):
    check_refuses(CODECS.create(codec), FORGERIES[codec, name], name)


@codecs
def test_another_wire_version_is_refused_by_name_with_the_remedy(codec):
    with pytest.raises(
        CorruptPayload, match=r"wire version 2, this build reads 1: install one version"
    ):
        codec.decode(forged(TWO, version=2))


@codecs
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_exact_codec_refuses_what_is_not_finite(codec, bad):
    payload = None
    with np.errstate(all="ignore"):
        payload = codec.encode(
            Selection(np.array([2, 5], np.uint32), np.array([1.0, bad], np.float32), 9)
        )
    if codec.is_exact:
        check_refuses(codec, payload, f"{bad}")
        return
    with contextlib.suppress(CorruptPayload):
        assert np.isfinite(codec.decode(payload).values).all()


@codecs
@dtypes
@pytest.mark.parametrize("density", [0.001, 0.02, 0.3, 1.0])
def test_the_bytes_that_a_codec_announces_are_the_payloads(codec, dtype, density):
    numel, width = 100_000, np.dtype(dtype).itemsize
    count = int(numel * density)
    indices = np.sort(np.random.default_rng(0).choice(numel, count, replace=False))

    def selection(dtype):
        made = selection_of(indices, numel, dtype)
        if codec.id == "one_sign":  # made for what has one sign; others cost it a bit an entry
            made = replace(made, values=np.abs(made.values))
        return made

    payload = codec.encode(selection(dtype))
    announced = HEADER_BYTES + codec.body_bytes(count, numel, width)
    if codec.has_fixed_size:
        assert announced == payload.size
    else:
        assert announced == pytest.approx(payload.size, rel=0.01)
    at_density = codec.at_density(density)
    size = at_density.encode(selection("float32")).size - HEADER_BYTES
    assert codec.entry_bytes(numel, density) == pytest.approx(size / count, rel=0.01)


@codecs
def test_a_payload_is_read_wherever_it_lies_and_not_written_to(codec):
    """In an allgather's bytes nothing is aligned."""
    payload = codec.encode(selection_of((1, 2, 40_000), 70_000))
    expected = codec.decode(payload).values.tolist()
    for offset in range(1, 8):
        buffer = np.concatenate([np.zeros(offset, np.uint8), payload])
        buffer.flags.writeable = False
        assert codec.decode(buffer[offset:]).values.tolist() == expected


@pytest.mark.parametrize("id", ["block16", "chunk12", "golomb", "bitmap", "dense", "auto"])
def test_formats_of_values_that_a_codec_does_not_know_are_refused_by_name(id):
    is_of_bytes = id in ("bitmap", "dense", "auto")
    known = "bfloat16, float16, float32, " + ("int8" if is_of_bytes else "int2, int4, int8")
    for values in ("float8", "int2") if is_of_bytes else ("float8",):
        with pytest.raises(InvalidOption, match=f"'{values}': give one of {known}"):
            CODECS.create(id, values=values)


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8", "int4", "int2"])
def test_values_of_another_format_than_the_codecs_are_refused_by_name(values):
    payload = CODECS.create("block16", values="float32").encode(selection_of((1, 2), 5))
    with pytest.raises(CorruptPayload, match=r"values of format 0, and Block16"):
        CODECS.create("block16", values=values).decode(payload)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_payloads_are_refused_or_are_what_is_written(name):
    check, repair = TARGETS[name]
    for seed in seeds(name):  # or what follows would show nothing
        assert check(seed)
        assert repair(seed) == seed
    assert check_damaged(check, repair, seeds(name)) > 0


@codecs
@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_a_header_that_promises_billions_allocates_next_to_nothing(codec, count):
    for size in (0, 4, 5, 6, 64, 4_096):
        form, number = VALUE_FORMATS[getattr(codec, "values", "float32")], codec.number or 3
        for fill in (0, 1, 255):
            payload = forged(
                bytes([fill]) * size, codec=number, value_format=form, numel=2**32 - 1, count=count
            )
            check_frame(codec, payload.tobytes())  # engines and kernels are loaded at first use
            tracemalloc.start()
            try:
                check_frame(codec, payload.tobytes())
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < BOUND_BYTES + 64 * payload.size
