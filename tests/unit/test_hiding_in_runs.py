"""Densities that are measured in a run: the rule, what ranks make of it, and what is refused."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.timings import samples, told

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan import decisions
from hvd_sparse.plan.costs import Costs
from hvd_sparse.plan.decisions import HiddenDensities
from hvd_sparse.step.buckets import grouped, one_per_tensor
from hvd_sparse.step.session import Session

SPECS = worlds.tensors((400, 30), (70, 90), (300, 200), (50, 50), (640, 80), (9, 9), (6,))
ASKED = worlds.configure("topk", "hiding:200", compress_1d=False)
CONFIGURATION = ASKED.for_tensors(SPECS)
BUCKETS = grouped(SPECS, CONFIGURATION)
KEYS = [SPECS[position].key for (position,) in one_per_tensor(SPECS, CONFIGURATION)]
LEAST = 1 / 200

gaps = st.lists(st.floats(0, 10), min_size=1, max_size=12)
costs = st.tuples(st.floats(0, 5), st.floats(0.01, 5))


def takes_of(messages, start_s, unit_s, sizes=6):
    return start_s + unit_s * np.arange(1, sizes + 1) * np.ones((messages, 1))


def largest_hidden(ready_s, takes_s):
    chosen, ends_s = decisions.largest_hidden(ready_s, takes_s)
    assert ends_s.tolist() == ends_of(ready_s, takes_s, chosen)
    return chosen


def ends_of(ready_s, takes_s, chosen):
    ends, free_s = [], 0.0
    for at_s, sizes_s, number in zip(ready_s, takes_s, chosen):
        free_s = max(free_s, at_s) + sizes_s[number]
        ends.append(free_s)
    return ends


@settings(max_examples=200, deadline=None)
@given(gaps, costs)
def test_what_is_more_than_the_least_hides_and_no_more_would(gaps_s, cost):
    ready_s, takes_s = np.cumsum(gaps_s), takes_of(len(gaps_s), *cost)
    chosen = largest_hidden(ready_s, takes_s)
    assert chosen[-1] == 0 and all(0 <= number < takes_s.shape[1] for number in chosen)
    ends = ends_of(ready_s, takes_s, chosen)
    for i, number in enumerate(chosen[:-1]):
        sends_s = max(ready_s[i], ends[i - 1] if i else 0.0)
        assert number == 0 or ends[i] <= ready_s[i + 1]
        is_most = number + 1 == takes_s.shape[1]
        assert is_most or sends_s + takes_s[i][number + 1] > ready_s[i + 1]


def found_with(start_s, byte_s, keys=KEYS, buckets=BUCKETS):
    each = [
        told(SPECS, {key: [3] for key in keys}, late_s=late_s, entry_bytes=8 * LEAST)
        for late_s in (0.0, 1e-4)
    ]
    wires = [samples(start_s, byte_s)] * 2
    return HiddenDensities.make(Costs(CONFIGURATION, SPECS, each, wires, buckets))


def test_densities_lie_between_the_least_and_all_and_the_last_layer_has_the_least():
    found = found_with(1e-3, 1e-7)
    assert sorted(found.densities) == sorted(KEYS)
    assert all(LEAST <= density <= 1 for density in found.densities.values())
    assert found.densities["t0"] == LEAST, "nothing is computed behind the last gradient"
    assert max(found.densities.values()) > LEAST
    assert HiddenDensities.from_dict(json.loads(json.dumps(asdict(found)))) == found
    assert "messages hide behind a backward pass" in str(found)


def test_a_free_network_hides_all_and_one_that_nothing_hides_gets_the_least():
    free = found_with(0.0, 0.0)
    assert {d for key, d in free.densities.items() if key != "t0"} == {1.0}
    assert free.hidden == free.messages - 1 and free.exposed_s == pytest.approx(0.0, abs=1e-6)
    slow = found_with(10.0, 1e-3)
    assert set(slow.densities.values()) == {LEAST} and slow.hidden == 0


def test_tensors_of_a_message_have_one_density_and_unseen_ones_keep_the_least():
    pair = [(3, 4), (1, 2), (0,), (5,)]
    found = found_with(1e-3, 1e-7, keys=[key for key in KEYS if key != "t5"], buckets=pair)
    assert "t5" not in found.densities
    assert found.densities["t3"] == found.densities["t4"]
    assert found.densities["t1"] == found.densities["t2"]
    settled = CONFIGURATION.for_tensors(SPECS, found.densities)
    assert settled.density(0, SPECS[5]) == LEAST
    assert settled.density(0, SPECS[4]) == found.densities["t4"]


def test_what_was_measured_is_no_part_of_what_was_asked_for():
    settled = CONFIGURATION.for_tensors(SPECS, {"t4": 0.5})
    assert settled == CONFIGURATION and settled.digest == CONFIGURATION.digest
    assert settled.rule.is_measured and not CONFIGURATION.rule.is_measured
    described = settled.describe()
    assert described["selector"]["density"] == "hiding:200" == described["schedule"]["value"]
    again = Configuration.create(**json.loads(json.dumps(described)))
    assert again == ASKED and again.density(0, SPECS[4]) == LEAST
    anew = settled.for_tensors(SPECS, {})
    assert anew.density(0, SPECS[4]) == LEAST and not anew.rule.is_measured


def test_a_schedule_ends_at_what_was_measured():
    schedule = {"id": "dense_warmup", "warmup_steps": 3}
    warmed = worlds.configure("topk", "hiding", schedule=schedule).for_tensors(SPECS)
    assert [warmed.density(step, SPECS[4]) for step in (0, 2, 3)] == [1.0, 1.0, 0.001]
    settled = warmed.for_tensors(SPECS, {"t4": 0.25})
    assert [settled.density(step, SPECS[4]) for step in (0, 2, 3)] == [1.0, 1.0, 0.25]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exchange": "oktopk"}, "exchange='allgather'"),
        ({"exchange": "auto"}, "exchange='allgather'"),
        ({"groups": "planned"}, "leave groups out"),
        ({"select_over": "group"}, "select_over='tensor'"),
        *(
            ({"density": text}, "hiding:300")
            for text in ("hiding:", "hiding:0.5", "hiding:nan", "hiding:inf", "hidden")
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(options, words):
    with pytest.raises(InvalidOption, match=words):
        worlds.configure(**{"density": "hiding", **options})


def test_nothing_hides_in_a_session():
    with pytest.raises(InvalidOption, match=r"compressor\.hiding\.densities"):
        worlds.run(1, lambda collective: Session(ASKED, SPECS, collective))
