"""No part escapes the suite: what is registered and what is tested are the same."""

import json

import cases
import pytest

from hvd_sparse import registry
from hvd_sparse.registry import configuration

KINDS = {
    "selector": (registry.SELECTORS, cases.SELECTORS, {"density": 0.01}),
    "memory": (registry.MEMORIES, cases.MEMORIES, {}),
    "codec": (registry.CODECS, cases.CODECS, {}),
    "exchange": (registry.EXCHANGES, cases.EXCHANGES, {}),
    "schedule": (registry.SCHEDULES, cases.SCHEDULES, {}),
    "engine": (registry.ENGINES, cases.EVERY_ENGINE, {}),
    "telemetry writer": (registry.WRITERS, cases.WRITERS, {}),
}
EVERY_CASE = [
    pytest.param(parts, case.create(parts, **extra), id=f"{kind}-{case}")
    for kind, (parts, listed, extra) in KINDS.items()
    for case in listed
    if kind != "engine" or case in cases.INSTALLED_ENGINES
]


def test_every_registry_is_listed_in_cases():
    assert {id(parts) for parts, _, _ in KINDS.values()} == {id(parts) for parts in registry.ALL}


@pytest.mark.parametrize("kind", KINDS)
def test_every_registered_part_has_a_case_and_every_case_a_part(kind):
    parts, listed, _ = KINDS[kind]
    assert parts.kind == kind
    assert {case.id for case in listed} == set(parts.ids()), (
        f"add a line to tests/cases.py for every {kind}"
    )


@pytest.mark.parametrize(("parts", "part"), EVERY_CASE)
def test_a_part_comes_back_equal_from_its_json_configuration(parts, part):
    described = json.loads(json.dumps(configuration(part)))
    again = parts.resolve(described)
    assert type(again) is type(part)
    assert again == part
    assert hash(again) == hash(part)
