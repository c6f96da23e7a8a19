"""Measuring a world of threads: the same numbers on all ranks, fit for the planner."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from hvd_sparse.autotune.costmodel.costs import MeasuredWire, Work
from hvd_sparse.autotune.measured_costs import Timings
from hvd_sparse.autotune.probe import probe
from hvd_sparse.autotune.prober import LEAST, LONG_S, MOST, Prober
from hvd_sparse.autotune.submissions import SUBMITTED, PlainSubmission
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels import reference
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import dense_inbound

RANKS = 3
DENSITIES = (0.01, 0.1)
EXCHANGES = ("allgather", "gtopk", "shared_index")


@pytest.fixture(scope="module")
def outcomes():
    configurations = {
        exchange: [
            Configuration.create(
                selector={"id": "topk", "density": d}, exchange=exchange, allow_dense=False
            )
            for d in DENSITIES
        ]
        for exchange in EXCHANGES
    }

    def script(collective):
        options = {
            "timeout_s": 20,
            "submitted_bytes": (600, 6000),
            "numels": (2000, 8000),
            "budget_s": 0.0,
        }
        return probe(collective, configurations, reference, **options)

    return LocalWorld(RANKS, 60.0).run(script)


def test_all_ranks_measure_the_same(outcomes):
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0].world_size == RANKS and outcomes[0].cores > 0


def test_messages_count_as_the_planner_counts_what_is_received(outcomes):
    sizes = {
        kind: [each.size for each in outcomes[0].samples if each.what == kind]
        for kind in outcomes[0].lines
    }
    dense = dense_inbound(in_nodes_of(1, 0, RANKS)) / 4
    assert sizes == {
        "allgather": [600 * 2, 6000 * 2],
        "allreduce": [pytest.approx(600 * dense), pytest.approx(6000 * dense)],
        "allreduce_dense": [pytest.approx(600 * dense), pytest.approx(6000 * dense)],
        "allreduce_fp16": [pytest.approx(600 * dense), pytest.approx(6000 * dense)],
        "alltoall": [pytest.approx(600 * 2 / 3), pytest.approx(6000 * 2 / 3)],
    }


def test_every_size_and_density_has_its_rounds(outcomes):
    computed = [each for each in outcomes[0].samples if each.density is not None]
    assert {(each.what, each.size, each.density) for each in computed} == {
        (f"{exchange}: {what}", numel, density)
        for exchange in EXCHANGES
        for what in ("select", "settle")
        for numel in (2000, 8000)
        for density in DENSITIES
    }
    for each in outcomes[0].samples:
        assert len(each.seconds) == (MOST if each.what in ("submit", "collect") else LEAST)
        assert min(each.seconds) > 0 or "settle" in each.what


def test_every_exchange_costs_what_was_measured_of_it(outcomes):
    work = outcomes[0].work
    assert set(work.exchanges) == set(EXCHANGES) - {"allgather"}
    assert work.of("gtopk") is work.exchanges["gtopk"] and work.of("allgather") is work
    assert work.of("gtopk").submit_s == work.submit_s


def test_what_was_measured_is_a_file_of_costs(outcomes):
    document = json.loads(json.dumps(outcomes[0].to_dict()))
    assert Work(**document["work"]) == outcomes[0].work
    assert set(document["lines"]) == {
        "allgather",
        "allreduce",
        "allreduce_dense",
        "allreduce_fp16",
        "alltoall",
    }
    assert MeasuredWire(outcomes[0].lines).line("alltoall", None) == outcomes[0].lines["alltoall"]
    assert document["cores"] == outcomes[0].cores
    for each in document["samples"]:
        assert each["low_s"] <= each["median_s"] <= each["high_s"]


def test_the_slowest_rank_counts_and_rounds_are_not_without_end():
    """Only one rank waits in the call; all are told how long it took, and all stop together."""

    def script(collective):
        waits = [0.002 if collective.rank == 1 else 0.0] * 1000
        prober = Prober(collective, 20, budget_s=1e9)
        return prober.repeat("select", 1, lambda: time.sleep(waits.pop()), 0.1)

    first, second = LocalWorld(2, 60.0).run(script)
    assert first == second
    assert len(first.seconds) == MOST and min(first.seconds) >= 0.002


def test_sizes_that_would_take_too_long_are_left_out():
    """Two sizes there are always: a line needs them."""

    def script(collective):
        prober = Prober(collective, 20, budget_s=0.0)
        prober.message = lambda kind, nbytes: Timings(kind, nbytes, (0.4 * LONG_S,))
        return [each.size for each in prober.messages("allgather", (1, 1000, 2000, 8000))]

    assert LocalWorld(2, 60.0).run(script) == [[1, 1000, 2000]] * 2


def test_handing_over_is_counted_by_tensor(outcomes):
    handed = {each.what: each for each in outcomes[0].samples if each.what in ("submit", "collect")}
    assert outcomes[0].work.submit_s == pytest.approx(
        np.median(handed["submit"].seconds) / SUBMITTED
    )
    assert outcomes[0].work.collect_s == pytest.approx(
        np.median(handed["collect"].seconds) / SUBMITTED
    )


class Users:
    """Takes some time more than exchanges do, and twice that with a compressor."""

    def __init__(self, collective):
        self.plain, self.compressed = (
            Slow(PlainSubmission(collective, 20), times) for times in (1, 2)
        )
        self._collective = collective

    def sum(self, kind, nbytes):
        return lambda: self._collective.allreduce(np.zeros(nbytes // 4), f"sum.{kind}").wait(20)


class Slow:
    def __init__(self, plain, times):
        self._plain, self._seconds = plain, times * 0.01

    def submit(self):
        time.sleep(self._seconds)
        self._plain.submit()

    def collect(self):
        time.sleep(self._seconds)
        self._plain.collect()


def test_the_optimizers_part_counts_for_every_tensor_and_the_compressors_for_those_that_it_leaves():
    configurations = {
        "allgather": [
            Configuration.create(selector={"id": "topk", "density": d}, allow_dense=False)
            for d in DENSITIES
        ]
    }

    def script(collective):
        options = {
            "timeout_s": 20,
            "submitted_bytes": (600, 6000),
            "numels": (2000, 8000),
            "budget_s": 0.0,
        }
        return probe(collective, configurations, reference, users=Users(collective), **options)

    first, second = LocalWorld(2, 60.0).run(script)
    assert first == second
    medians = {
        each.what: float(np.median(each.seconds)) / SUBMITTED
        for each in first.samples
        if each.size == SUBMITTED
    }
    assert set(medians) == {
        f"{how}{what}"
        for how in ("", "optimizer: ", "compressor: ")
        for what in ("submit", "collect")
    }
    work = first.work
    assert (
        work.dense_submit_s == pytest.approx(medians["optimizer: submit"])
        and work.dense_submit_s >= 0.01 / SUBMITTED
    )
    assert (
        work.submit_s == pytest.approx(medians["compressor: submit"])
        and work.collect_s >= 0.02 / SUBMITTED
    )
    assert work.call_s >= medians["optimizer: submit"] - medians["submit"]
    assert work.tensor_s >= medians["optimizer: collect"] - medians["collect"]


def test_payloads_are_of_another_length_every_time():
    """Horovod then agrees on each anew, as in steps; sums are of the same."""
    lengths = {"allgather": [], "allreduce": []}

    def script(collective):
        prober = Prober(collective, 20, budget_s=0.0)
        for kind in lengths:
            start = getattr(collective, kind)

            def seen(array, name, kind=kind, start=start):
                if kind in name and collective.rank == 0:
                    lengths[kind].append(array.nbytes)
                return start(array, name)

            setattr(collective, kind, seen)
            prober.message(kind, 800)

    LocalWorld(2, 60.0).run(script)
    assert all(len(seen) > LEAST for seen in lengths.values())
    assert set(lengths["allreduce"]) == {800}
    assert all(one != other for one, other in zip(lengths["allgather"], lengths["allgather"][1:]))


def test_quartiles_say_how_much_the_rounds_differ():
    described = Timings("allgather", 10, (1.0, 2.0, 3.0, 4.0, 100.0)).to_dict()
    assert (described["low_s"], described["median_s"], described["high_s"]) == (2.0, 3.0, 4.0)
    assert "density" not in described


def test_one_rank_alone_cannot_be_measured():
    with pytest.raises(InvalidOption, match="horovodrun"):
        LocalWorld(1, 10.0).run(lambda collective: Prober(collective, 1.0))
