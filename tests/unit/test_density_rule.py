"""Densities by tensor, as given and as measured: what is refused, and that all ranks agree."""

import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import worlds
from compressors import SPECS as COMPRESSED
from conformance.exchange_checks import run_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.merged import SPECS as GROUPED
from unit.merged import train
from unit.timings import samples, told
from worlds import configure, normals

from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import check_rule
from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.plan import decisions
from hvd_sparse.plan.costs import Costs
from hvd_sparse.plan.decisions import HiddenDensities
from hvd_sparse.step.buckets import grouped, one_per_tensor
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

NAMES = {"conv.weight": (40, 30), "fc.weight": (50, 20), "fc.bias": (20,)}
SPECS = [TensorSpec(name, shape, "float32") for name, shape in NAMES.items()]
RULE = {"*": 0.01, "fc.*": 0.1, "fc.bias": 1.0}
BY_NAME = {"conv.weight": 0.01, "fc.weight": 0.1, "fc.bias": 1.0}


def by_shape(name, shape):
    return 1.0 if len(shape) == 1 else 0.1 if name.startswith("fc") else 0.01


def sent(configuration):
    drawn = partial(normals, SPECS)
    outcomes = run_steps(configuration, 2, drawn, 1, specs=SPECS)
    reports = [each["session"].step.stats.report(None)["tensors"] for each in outcomes]
    return {name: sum(report[name]["entries_sent"] for report in reports) for name in NAMES}


@pytest.mark.parametrize("density", [RULE, dict(reversed(RULE.items())), by_shape, BY_NAME])
@pytest.mark.parametrize("selector", ["topk", "ldte_bs", "gaussian_k", "sidco"])
def test_each_tensor_sends_what_its_own_density_asks_for(density, selector):
    told = sent(configure(selector, density))
    uniform = [sent(configure(selector, d)) for d in (0.01, 0.1, 1.0)]
    assert told == {name: each[name] for name, each in zip(NAMES, uniform)}
    if selector == "topk":
        assert told == {"conv.weight": 24, "fc.weight": 200, "fc.bias": 40}


def test_the_closest_glob_wins_and_equally_close_ones_are_refused():
    spec = TensorSpec("layer1.weight", (3, 3), "float32")

    def asked(patterns):
        return check_rule(patterns, "density").density_of(spec)

    assert asked({"*": 0.1, "layer?.*": 0.2, "layer1.*": 0.3}) == 0.3
    assert asked({"*": 0.1, "layer1.weight": 0.4, "layer1.*ght": 0.3}) == 0.4
    assert asked({"layer*": 0.1, "*layer": 0.2}) == 0.1
    with pytest.raises(InvalidOption, match=r"'layer1\*' and for 'layer\*1\*', .*'layer1.weight'"):
        asked({"layer1*": 0.1, "layer*1*": 0.2})


REFUSED = [
    ({"fc.*": 0.1}, "does not cover tensor 'conv.weight'.*add its name"),
    ({**RULE, "head.*": 0.1}, "'head.\\*', but no tensor has this name.*conv.weight"),
    ({**RULE, "fc.*": 2}, r"for 'fc\.\*' is 2.*\(0, 1\]"),
    ({**RULE, 3: 0.1}, "names or globs"),
    ({}, "names or globs"),
    (lambda name, shape: None, "density of tensor 'conv.weight' is None"),
    (lambda name: 0.1, "cannot be called with a tensor's name and shape"),
    ("a lot", "is 'a lot'"),
]


@pytest.mark.parametrize(("density", "words"), REFUSED)
def test_what_leaves_a_tensor_without_one_density_is_refused_by_name(density, words):
    with pytest.raises(InvalidOption, match=words):
        configure(density=density).for_tensors(SPECS)


def test_tensors_that_go_dense_anyway_need_no_density():
    configuration = configure(density={"*.weight": 0.1}, compress_1d=False)
    assert configuration.for_tensors(SPECS).rule.table == {"conv.weight": 0.1, "fc.weight": 0.1}


SCHEDULES = {
    "dense_warmup": ({"warmup_steps": 2}, [1.0, 1.0], [1.0, 1.0]),
    "exponential_warmup": ({"stage_steps": 1}, [0.25, 0.0625], [0.25, 0.1]),
    "piecewise": ({"boundaries": [1, 2], "densities": [0.2, 0.04, 0.02]}, [0.1, 0.02], [1.0, 0.2]),
}


@pytest.mark.parametrize("id", SCHEDULES)
def test_a_schedule_ends_at_each_tensors_own_density(id):
    options, conv, fc = SCHEDULES[id]
    made = configure(density=RULE, schedule={"id": id, **options}).for_tensors(SPECS)
    for spec, early, late in zip(SPECS, (conv, fc), (0.01, 0.1)):
        assert [made.density(step, spec) for step in (0, 1)] == pytest.approx(early)
        assert made.density(10**6, spec) == pytest.approx(late)


@pytest.mark.parametrize("density", [RULE, 0.25, 1])
def test_a_schedule_without_a_value_takes_the_methods_density_and_may_not_contradict_it(density):
    schedule = {"id": "dense_warmup", "warmup_steps": 3}
    made = configure(density=density, schedule=schedule)
    assert configure(density=density, schedule={**schedule, "value": density}) == made
    words = r"^density is .* and schedule dense_warmup has value 0\.5: .*leave value out of the sch"
    with pytest.raises(InvalidOption, match=words):
        configure(density=density, schedule={**schedule, "value": 0.5})


@pytest.mark.parametrize("density", [RULE, by_shape])
def test_a_configuration_with_a_rule_comes_back_equal_from_json(density):
    made = configure(density=density).for_tensors(SPECS)
    again = Configuration.create(**json.loads(json.dumps(made.describe(), sort_keys=True)))
    assert again == made and again.digest == made.digest
    assert again.for_tensors(SPECS).rule.table == BY_NAME


def test_ranks_that_differ_are_told_tensor_and_values():
    def script(collective):
        fc = 0.1 if collective.rank == 0 else 0.2
        Session(configure(density={"*": 0.01, "fc.*": fc}), SPECS, collective)

    with pytest.raises(RankMismatch, match=r"rank 0 .*fc.weight 0.1.*rank 1 .*fc.weight 0.2"):
        worlds.run(2, script)


def test_reports_know_each_tensors_density(make):
    rules = [{"t0": density, "*": 0.5} for density in (0.1, 0.2)]
    first, other = (make(configure("ldte_bs", rule).for_tensors(COMPRESSED)) for rule in rules)
    first.train(range(3))
    report = first.stats()
    assert report["density_asked"] == pytest.approx((0.1 * 120 + 0.5 * 9) / 129)
    assert report["tensors"]["t0"]["density_asked"] == 0.1
    assert first.footprint()["gathered_bytes"] < other.footprint()["gathered_bytes"]


def test_a_group_sends_as_many_entries_as_its_tensors_ask_for_together():
    rule = {"*": 0.1, "t2": 0.01}
    options = {"select_over": "group", "groups": 1}
    configuration = configure(density=rule, **options).for_tensors(GROUPED)
    outcome = train(configuration, ranks=2, steps=1, draw=worlds.normals)[0]
    asked = sum(configuration.rule.table[spec.key] * spec.numel for spec in GROUPED)
    numel = sum(spec.numel for spec in GROUPED)
    report = outcome[3]
    assert report["entries_sent"] == count_from_density(numel, asked / numel)
    applied = np.concatenate([value.reshape(-1) for value in outcome[1][0].values()])
    assert np.count_nonzero(applied) > report["entries_sent"] / 2


def test_a_function_and_a_selector_with_a_rule_say_that_tensors_must_settle_them():
    with pytest.raises(InvalidOption, match=r"the function <function by_shape.*named tensors"):
        configure(density=by_shape).describe()
    selector = configure(density=RULE).selector
    with pytest.raises(InvalidOption, match="TopK is a rule for several tensors: call at_density"):
        selector.select(np.ones(9, np.float32))
    assert selector.at_density(0.5).select(np.ones(8, np.float32)).count == 4


# -- densities that are measured in a run ---------------------------------------------------------

LAYERS = worlds.tensors((400, 30), (70, 90), (300, 200), (50, 50), (640, 80), (9, 9), (6,))
ASKED = worlds.configure("topk", "hiding:200", compress_1d=False)
HIDING = ASKED.for_tensors(LAYERS)
BUCKETS = grouped(LAYERS, HIDING)
KEYS = [LAYERS[position].key for (position,) in one_per_tensor(LAYERS, HIDING)]
LEAST = 1 / 200


def ends_of(ready_s, takes_s, chosen):
    ends, free_s = [], 0.0
    for at_s, sizes_s, number in zip(ready_s, takes_s, chosen):
        free_s = max(free_s, at_s) + sizes_s[number]
        ends.append(free_s)
    return ends


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.floats(0, 5), st.floats(0.01, 5))
def test_what_is_more_than_the_least_hides_and_no_more_would(gaps_s, start_s, unit_s):
    ready_s = np.cumsum(gaps_s)
    takes_s = start_s + unit_s * np.arange(1, 7) * np.ones((len(gaps_s), 1))
    chosen, ends_s = decisions.largest_hidden(ready_s, takes_s)
    assert chosen[-1] == 0 and all(0 <= number < takes_s.shape[1] for number in chosen)
    ends = ends_of(ready_s, takes_s, chosen)
    assert ends_s.tolist() == ends
    for i, number in enumerate(chosen[:-1]):
        sends_s = max(ready_s[i], ends[i - 1] if i else 0.0)
        assert number == 0 or ends[i] <= ready_s[i + 1]
        is_most = number + 1 == takes_s.shape[1]
        assert is_most or sends_s + takes_s[i][number + 1] > ready_s[i + 1]


def found_with(start_s, byte_s, keys=KEYS, buckets=BUCKETS):
    each = [
        told(LAYERS, {key: [3] for key in keys}, late_s=late_s, entry_bytes=8 * LEAST)
        for late_s in (0.0, 1e-4)
    ]
    wires = [samples(start_s, byte_s)] * 2
    return HiddenDensities.make(Costs(HIDING, LAYERS, each, wires, buckets))


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
    settled = HIDING.for_tensors(LAYERS, found.densities)
    assert settled.density(0, LAYERS[5]) == LEAST
    assert settled.density(0, LAYERS[4]) == found.densities["t4"]


def test_what_was_measured_is_no_part_of_what_was_asked_for():
    settled = HIDING.for_tensors(LAYERS, {"t4": 0.5})
    assert settled == HIDING and settled.digest == HIDING.digest
    assert settled.rule.is_measured and not HIDING.rule.is_measured
    described = settled.describe()
    assert described["selector"]["density"] == "hiding:200" == described["schedule"]["value"]
    again = Configuration.create(**json.loads(json.dumps(described)))
    assert again == ASKED and again.density(0, LAYERS[4]) == LEAST
    anew = settled.for_tensors(LAYERS, {})
    assert anew.density(0, LAYERS[4]) == LEAST and not anew.rule.is_measured


def test_a_schedule_ends_at_what_was_measured():
    schedule = {"id": "dense_warmup", "warmup_steps": 3}
    warmed = worlds.configure("topk", "hiding", schedule=schedule).for_tensors(LAYERS)
    assert [warmed.density(step, LAYERS[4]) for step in (0, 2, 3)] == [1.0, 1.0, 0.001]
    settled = warmed.for_tensors(LAYERS, {"t4": 0.25})
    assert [settled.density(step, LAYERS[4]) for step in (0, 2, 3)] == [1.0, 1.0, 0.25]


@pytest.mark.parametrize(
    ("options", "words"),
    [
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
        worlds.run(1, lambda collective: Session(ASKED, LAYERS, collective))
