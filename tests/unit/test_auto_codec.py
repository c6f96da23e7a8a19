"""``auto``: the fewest bytes of the codecs that keep all indices, decided alike on all ranks."""

import numpy as np
import pytest
from conformance.codec_checks import selection_of
from conformance.exchange_checks import assert_replicas, integers, lost, run_steps
from worlds import configure

from hvd_sparse.checks import count_from_density
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.registry import CODECS

NUMEL = 300_000
OTHERS = {
    "float32": ["index_value", "run16", "block16", "golomb", "bitmap", "dense"],
    "bfloat16": ["block16", "golomb", "bitmap", "dense"],
}


def random_indices(count):
    return np.sort(np.random.default_rng(0).choice(NUMEL, count, replace=False))


@pytest.mark.parametrize("values", OTHERS)
@pytest.mark.parametrize(
    "density", [1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.45, 0.6, 0.9, 0.96, 0.99, 1.0]
)
def test_no_other_codec_that_keeps_all_indices_needs_fewer_bytes(values, density):
    selection = selection_of(random_indices(count_from_density(NUMEL, density)), NUMEL)
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
    frames = [codec.encode(selection_of(random_indices(count), NUMEL)) for count in counts]
    assert {int(frame[3]) for frame in frames} == {CODECS.get("bitmap").number}
    assert [codec.decode(frame).count for frame in frames] == counts
    with pytest.raises(CorruptPayload, match=r"of codec 3 and \d+ bytes is no bitmap payload"):
        codec.decode(CODECS.create("golomb").encode(selection_of((1, 2), NUMEL)))


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
