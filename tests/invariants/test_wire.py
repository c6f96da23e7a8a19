"""What travels, invariant 20: bytes of indices, Golomb's code beside the entropy, and the
fewest bytes for the codec ``auto``, which all ranks decide alike."""

import math

import numpy as np
import pytest
from conformance.exchange_checks import assert_replicas, integers, lost, run_steps
from worlds import configure

from hvd_sparse.checks import count_from_density
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels.packing import modulus_of
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import HEADER_BYTES


def random_selection(numel, count):
    rng = np.random.default_rng(0)
    indices = np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)
    return Selection(indices, rng.normal(size=count).astype("f4"), numel)


def body_bytes(codec, selection):
    return codec.encode(selection).size - HEADER_BYTES


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 1e-2, 0.1])
def test_index_value_is_eight_bytes_and_run16_six_for_entries_and_fillers(density):
    selection = random_selection(2_000_000, count_from_density(2_000_000, density))
    fillers = sum(
        int(gap) // 65_536 for gap in np.diff(selection.indices.astype(int), prepend=-1) - 1
    )
    assert (fillers > 0) == (density == 1e-5)
    assert body_bytes(CODECS.create("index_value"), selection) == 8 * selection.count
    assert body_bytes(CODECS.create("run16"), selection) == 6 * (selection.count + fillers)


def entropy_bits(density):
    """Of one index of a random set, as ALGORITHMS 14 has it."""
    rest = 1 - density
    return -(density * math.log2(density) + rest * math.log2(rest)) / density


def golomb_bits(density, modulus):
    """Golomb's code with truncated binary remainders: what a gap costs on average."""
    miss, width = 1 - density, math.ceil(math.log2(modulus))
    short = 2**width - modulus
    is_short = (1 - miss**short) / (1 - miss**modulus)
    return 1 / (1 - miss**modulus) + width - (is_short if short else 0)


MODULI = [factor << shift for factor in (1, 3) for shift in range(24)]


@pytest.mark.parametrize(
    "density", [1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 3e-2, 4e-2, 5e-2, 0.0589, 7e-2, 0.1]
)
def test_golomb_is_within_2_percent_of_entropy_and_1_percent_of_its_formula(density):
    """Also at 0.0589, where Rice's code, with powers of two alone, is not."""
    selection = random_selection(5_000_000, count_from_density(5_000_000, density))
    bits = 8 * (
        body_bytes(CODECS.create("golomb", values="float32"), selection) - 4 * selection.count
    )
    assert bits / selection.count == pytest.approx(
        min(golomb_bits(density, m) for m in MODULI), rel=0.01
    )
    assert bits / selection.count <= 1.02 * entropy_bits(density)


def test_the_modulus_is_the_best_there_is_of_its_kind():
    """By floating point, which the codec does not use."""
    for density in np.geomspace(1e-6, 0.9, 400):
        shift, parts = modulus_of(int(density * 2**31), 2**31)
        best = min(golomb_bits(density, modulus) for modulus in MODULI)
        assert golomb_bits(density, parts << shift) <= best * (1 + 1e-5)
        assert density > 0.1 or best <= 1.011 * entropy_bits(density)


NUMEL = 300_000
OTHERS = {
    "float32": ["index_value", "run16", "block16", "golomb", "bitmap", "dense"],
    "bfloat16": ["block16", "golomb", "bitmap", "dense"],
}


@pytest.mark.parametrize("values", OTHERS)
@pytest.mark.parametrize(
    "density", [1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.45, 0.6, 0.9, 0.96, 0.99, 1.0]
)
def test_no_other_codec_that_keeps_all_indices_needs_fewer_bytes(values, density):
    selection = random_selection(NUMEL, count_from_density(NUMEL, density))
    others = [
        CODECS.create(id, **({"values": values} if id not in ("index_value", "run16") else {}))
        for id in OTHERS[values]
    ]
    fewest = min(other.encode(selection).size for other in others)
    auto = CODECS.create("auto", values=values).at_density(density)
    assert auto.encode(selection).size <= 1.01 * fewest + 4
    assert auto.is_exact == (values == "float32")


def test_ranks_with_other_counts_write_the_same_codec_and_read_no_other():
    codec = CODECS.create("auto").at_density(0.6)
    counts = [0, 1, 5_000, 180_000, NUMEL]
    frames = [codec.encode(random_selection(NUMEL, count)) for count in counts]
    assert {int(frame[3]) for frame in frames} == {CODECS.get("bitmap").number}
    assert [codec.decode(frame).count for frame in frames] == counts
    with pytest.raises(CorruptPayload, match=r"of codec 3 and \d+ bytes is no bitmap payload"):
        codec.decode(CODECS.create("golomb").encode(random_selection(NUMEL, 2)))


def test_a_density_of_its_own_is_not_the_schedules():
    assert CODECS.create("auto", density=1.0).at_density(0.001).chosen(NUMEL).id == "dense"
    assert CODECS.create("auto").chosen(NUMEL).id == "golomb"


def test_the_choice_follows_a_schedule_through_real_steps():
    schedule = {"id": "piecewise", "boundaries": [1, 2], "densities": [1.0, 0.6, 0.01]}
    configuration = configure(schedule=schedule, codec={"id": "auto", "values": "float32"})
    outcomes = run_steps(configuration, 3, integers, steps=3)
    assert_replicas(outcomes)
    assert lost(outcomes) == 0
    first, _, last = (each["t2"] for each in outcomes[0]["applied"])
    assert first.tolist() == sum(integers(rank, 0)["t2"] for rank in range(3)).tolist()
    assert 0 < np.count_nonzero(last) <= 3 * 3
