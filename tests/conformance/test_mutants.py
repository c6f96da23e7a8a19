"""The checks object to parts that are broken on purpose; a check that lets them pass is none."""

import pytest
from conformance.mutants import MUTANTS, caught

pytestmark = pytest.mark.full

WORDS = {
    "selector: bisection: bracket not narrowed": "gave up",
    "selector: limit on passes forgotten": "limit",
    "codec: checksum not looked at": "was read as",
    "exchange: sums in another order on every rank": "different bits",
    "exchange: all that was offered taken for sent": "mass is lost",
    "exchange: cut on the way and forgotten": "mass is lost",
    "exchange: sent and kept back": "mass is lost",
    "memory: momentum not masked": "velocity",
    "memory: cleared at a rate of 0": "a step without a rate lost something",
    "memory: sent at a rate of 0": "a step without a rate",
    "memory: second moment not rolled back": "left a trace",
    "selector: an extra counting pass": "passes differ",
    "selector: a second pass for the moments": "more than one pass",
    "selector: a pass that takes entries and throws them away": "passes differ",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_broken_part_is_caught(mutant):
    objection = caught(mutant)
    assert objection is not None, f"nothing objects to {mutant}"
    assert WORDS.get(str(mutant), "") in objection


def test_no_two_mutants_share_a_name_and_every_reason_is_of_one():
    names = [str(mutant) for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(WORDS) <= set(names)
