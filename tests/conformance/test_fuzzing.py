"""Thousands of damaged payloads, half of them with right checksums; seeded."""

import tracemalloc

import cases
import pytest
from conformance.forgeries import forged
from conformance.fuzzing import check_damaged, check_frame, check_reader, seeds, targets

from hvd_sparse.codecs._values import format_number
from hvd_sparse.registry import CODECS

TARGETS = {name: (check, repair) for name, check, repair in targets()}
BOUND_BYTES = 8 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_payloads_are_refused_or_are_what_is_written(name):
    assert check_damaged(*TARGETS[name], seeds(name)) > 0, (
        "nothing was accepted: the seeds or the repair are wrong"
    )


@pytest.mark.parametrize("case", cases.CODECS, ids=str)
def test_every_bit_of_a_payload_may_be_another_and_its_checksum_right(case):
    check_reader(case.create(CODECS))


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_whole_is_accepted_and_a_repair_leaves_it_as_it_is(name):
    """Or the test above would show nothing."""
    check, repair = TARGETS[name]
    for seed in seeds(name):
        assert check(seed)
        assert repair(seed) == seed


@pytest.mark.parametrize("case", cases.CODECS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_a_header_that_promises_billions_allocates_next_to_nothing(case, count):
    for size in (0, 4, 5, 6, 64, 4_096):
        codec = case.create(CODECS)
        form, number = format_number(getattr(codec, "values", "float32")), codec.number or 3
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
