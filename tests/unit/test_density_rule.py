"""Densities by tensor: which one a tensor takes, what is refused, and that all ranks agree."""

import json

import numpy as np
import pytest
import worlds
from compressors import SPECS as COMPRESSED
from unit.merged import SPECS as GROUPED
from unit.merged import train
from worlds import configure, normals

from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.density_rule import check_rule
from hvd_sparse.errors import InvalidOption, RankMismatch
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

NAMES = {"conv.weight": (40, 30), "fc.weight": (50, 20), "fc.bias": (20,)}
SPECS = [TensorSpec(name, shape, "float32") for name, shape in NAMES.items()]
RULE = {"*": 0.01, "fc.*": 0.1, "fc.bias": 1.0}
BY_NAME = {"conv.weight": 0.01, "fc.weight": 0.1, "fc.bias": 1.0}


def by_shape(name, shape):
    return 1.0 if len(shape) == 1 else 0.1 if name.startswith("fc") else 0.01


def sent(configuration):
    def script(collective):
        session = Session(configuration, SPECS, collective)
        session.reduce(normals(SPECS, collective.rank, 0))
        return session.step.stats.report(None)["tensors"]

    reports = worlds.run(2, script)
    return {name: sum(report[name]["entries_sent"] for report in reports) for name in NAMES}


@pytest.mark.parametrize("density", [RULE, dict(reversed(RULE.items())), by_shape, BY_NAME])
@pytest.mark.parametrize("selector", ["topk", "ldte_bs", "gaussian_k", "sidco"])
def test_each_tensor_sends_what_its_own_density_asks_for(density, selector):
    told = sent(configure(selector, density))
    assert told == sum_of(configure(selector, d) for d in (0.01, 0.1, 1.0))
    if selector == "topk":
        assert told == {"conv.weight": 24, "fc.weight": 200, "fc.bias": 40}


def sum_of(uniform):
    return {name: sent(each)[name] for name, each in zip(NAMES, uniform)}


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


def test_a_function_is_told_as_what_it_is_until_the_tensors_are_known():
    with pytest.raises(InvalidOption, match=r"the function <function by_shape.*named tensors"):
        configure(density=by_shape).describe()


def test_ranks_that_differ_are_told_tensor_and_values():
    def script(collective):
        fc = 0.1 if collective.rank == 0 else 0.2
        Session(configure(density={"*": 0.01, "fc.*": fc}), SPECS, collective)

    with pytest.raises(RankMismatch, match=r"rank 0 .*fc.weight 0.1.*rank 1 .*fc.weight 0.2"):
        worlds.run(2, script)


def test_reports_and_checkpoints_know_each_tensors_density(make):
    rule = {"t0": 0.1, "*": 0.5}
    rules = (rule, rule, {**rule, "t0": 0.2})
    asked = [configure("ldte_bs", each).for_tensors(COMPRESSED) for each in rules]
    first, again, other = map(make, asked)
    first.train(range(3))
    report = first.stats()
    assert report["density_asked"] == pytest.approx((0.1 * 120 + 0.5 * 9) / 129)
    assert report["tensors"]["t0"]["density_asked"] == 0.1
    assert first.footprint()["gathered_bytes"] < other.footprint()["gathered_bytes"]
    state = first.state_dict()
    again.load_state_dict(state)
    assert again.train(range(3, 6)) == first.train(range(3, 6))
    with pytest.raises(RankMismatch, match=r"'t0': 0.1.*'t0': 0.2"):
        other.load_state_dict(state)


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


def test_a_selector_with_a_rule_says_that_a_tensor_must_settle_it():
    selector = configure(density=RULE).selector
    with pytest.raises(InvalidOption, match="TopK is a rule for several tensors: call at_density"):
        selector.select(np.ones(9, np.float32))
    assert selector.at_density(0.5).select(np.ones(8, np.float32)).count == 4
