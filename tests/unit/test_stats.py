"""What ``stats()`` says is what the collectives were given, and how long entries waited."""

import json
import threading

import numpy as np
import pytest
import worlds
from worlds import configure, integers, normals, tensors

from hvd_sparse.configuration import Configuration
from hvd_sparse.frontend.summary import summary_of
from hvd_sparse.step.session import Session
from hvd_sparse.step.stats import Stats
from hvd_sparse.step.tensor_state import BLOCK, EVERY, Departures
from hvd_sparse.wire.carrier import carrier_layout

SPECS = tensors((20, 5), (7,))
CARRIER_BYTES = 8 * carrier_layout("float64", 2).size
HANDSHAKE_BYTES = 2 * 32 + 3  # a digest, hexadecimal, in quotes, and the end of a line


def train(collective, configuration, steps, draw=normals):
    session = Session(configuration, SPECS, collective)
    for step in range(steps):
        session.reduce(draw(SPECS, collective.rank, step))
    return session.step.stats.report(0.1)


def test_bytes_entries_and_densities_are_those_of_the_selections_and_what_the_world_saw():
    """A bucket of two: 32 + 2 * 4 + 4 bytes a message, 32 a frame, 8 an entry; topk at 0.1 takes 10
    of 100, and 1 of 7 (at least one is sent)."""
    submitted = []

    def script(collective):
        def note(kind, arguments, call):
            if collective.rank == 0:
                submitted.append(arguments[0].nbytes)
            return call()

        return train(worlds.Around(collective, note), configure(density=0.1), 4)

    report = worlds.run(2, script)[0]
    assert report["bytes_sent"] == sum(submitted) - HANDSHAKE_BYTES
    assert report["bytes_sent"] == report["payload_bytes"] + report["carrier_bytes"]
    assert report["payload_bytes"] == 4 * (44 + 2 * 32) + 8 * report["entries_sent"]
    assert report["carrier_bytes"] == 4 * 2 * CARRIER_BYTES
    assert report["dense_bytes"] == 0
    assert (report["steps"], report["sparse_steps"], report["dense_steps"]) == (4, 8, 0)
    assert (report["entries_sent"], report["entries_total"]) == (4 * 11, 4 * 107)
    assert report["density_achieved"] == pytest.approx(11 / 107)
    assert report["density_asked"] == 0.1
    assert report["tensors"]["t0"]["density_achieved"] == pytest.approx(0.1)
    assert report["tensors"]["t1"]["entries_sent"] == 4
    assert (report["contraction"], report["staleness"]) == (None, None), "there is no telemetry"
    assert json.loads(json.dumps(report)) == report


def test_dense_steps_count_their_bytes_and_no_entries():
    report = worlds.run(2, lambda c: train(c, configure(density=1.0, allow_dense=True), 3))[0]
    assert (report["sparse_steps"], report["dense_steps"]) == (0, 6)
    assert report["dense_bytes"] == 3 * 107 * 4
    assert (report["entries_sent"], report["density_achieved"]) == (0, None)


def test_a_summary_of_steps_without_compressed_tensors_shows_the_sum_of_their_bytes():
    stats = Stats(threading.RLock(), list)
    for _ in range(3):
        stats.count_bytes("dense", 1000)
    text = summary_of({"name": "all", **stats.report(None)}, {}, {})
    assert text.startswith(
        "hvd_sparse all, since it was made: 0 steps with compressed tensors; 3,000 bytes sent and "
        "3,000 received\n"
    )


def test_passes_and_fallbacks_of_the_search_and_steps_without_own_passes_are_counted():
    """Whole numbers have ties: no threshold reaches 10 of 100, and exact top-k ends the search."""
    one_pass = configure("ldte_bs", 0.1).describe()
    one_pass["selector"] |= {"max_passes": 1, "warm_start": False}
    report = worlds.run(1, lambda c: train(c, Configuration.create(**one_pass), 3, integers))[0]
    assert report["passes"] == sum(counts["passes"] for counts in report["tensors"].values()) > 0
    assert 0 < report["fallbacks"] <= report["passes"]
    assert report["one_pass"] == 0
    report = worlds.run(1, lambda c: train(c, configure("ldte_bs", 0.1), 3))[0]
    assert report["one_pass"] == sum(each["one_pass"] for each in report["tensors"].values()) > 0


@pytest.mark.parametrize("selector", ["topk", "ldte_bs"])
@pytest.mark.parametrize("codec", ["index_value", "block16"])
def test_telemetry_tells_what_is_kept_of_the_accumulated_and_how_long_it_waits(selector, codec):
    steps, key = 5, "t0"
    configuration = configure(selector, 0.1, codec=codec, telemetry=True)

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        kept = there = waited = count = 0.0
        last = np.full(100, -1)
        residual = np.zeros(100)
        for step in range(steps):
            given = normals(SPECS, step)
            accumulated = residual + given[key].reshape(-1)
            sent = session.reduce(given)[key].reshape(-1) != 0
            residual = worlds.residuals(session)[key].astype(np.float64)
            kept, there = kept + (residual**2).sum(), there + (accumulated**2).sum()
            waited, count = waited + (step - last[sent]).sum(), count + sent.sum()
            last[sent] = step
        return session.step.stats.report(0.1)["tensors"][key], kept / there, waited / count

    ((told, contraction, staleness),) = worlds.run(1, script)
    assert told["contraction"] == pytest.approx(contraction, rel=1e-5)
    assert told["staleness"] == pytest.approx(staleness)
    assert told["contraction_bound"] == pytest.approx(1 - told["density_achieved"])
    assert told["contraction_of_bells"] == pytest.approx((1 - told["density_achieved"]) ** 2)
    assert 0 < told["contraction"] <= told["contraction_bound"]
    assert told["staleness"] > 1


def test_a_part_of_a_large_tensor_stands_for_all_of_it():
    rng, numel, size = np.random.default_rng(0), 200_003, 1000
    departures, left_at = Departures(numel, -1, size), np.full(numel, -1)
    assert departures._left_at.size < numel / (EVERY - 1)
    often = np.arange(numel) % 3 == 0  # these leave more often
    chance = np.where(often, 5.0, 1.0) / np.where(often, 5.0, 1.0).sum()
    for step in range(400):
        indices = np.unique(rng.choice(numel, size, p=chance)).astype(np.uint32)
        if step % 100 == 99:
            wanted = (step - left_at[indices]).mean()
            assert departures.waited(indices, step) / indices.size == pytest.approx(wanted, rel=0.1)
        if step % 50 == 49:  # taken back
            departures.note(step, np.arange(numel, dtype=np.uint32))
            departures.drop(step)
        departures.note(step, indices)
        left_at[indices] = step
    unwatched = np.array([BLOCK], np.uint32)
    last = departures.waited(indices, 400) / indices.size
    assert departures.waited(unwatched, 400) == round(last)
