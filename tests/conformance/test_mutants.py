"""The checks object to parts that are broken on purpose; a check that lets them pass is none."""

import pytest
from conformance.exchange_checks import check_exchange
from conformance.fused_checks import check_kernels
from conformance.memory_checks import check_memory
from conformance.mutants import MUTANTS, caught
from conformance.pass_checks import check_passes_on_all
from conformance.selector_checks import check_selector

from hvd_sparse.kernels import reference
from hvd_sparse.registry import EXCHANGES, MEMORIES, SELECTORS

pytestmark = pytest.mark.full

WORDS = {
    "search: bisection: bracket not narrowed": "gave up",
    "search: log_count: bracket not narrowed": "gave up",
    "search: limit on passes forgotten": "limit",
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


IDS = ("topk", "ldte_bs", "dgc_sampled", "redsync_trimmed", "redsync_search", "radix_select")
SOUND = [(check_kernels, reference)]
SOUND += [
    (check, SELECTORS.create(id, density=0.1))
    for id in IDS
    for check in (check_selector, check_passes_on_all)
]
SOUND += [(check_memory, MEMORIES.create(id)) for id in ("error_feedback", "adam_correction")]
SOUND += [
    (check_memory, MEMORIES.create("momentum_correction", masking=masking))
    for masking in (True, False)
]
SOUND += [
    (check_exchange, EXCHANGES.create(id))
    for id in ("allgather", "shared_index", "gtopk", "oktopk")
]
SOUND += [
    (mutant.check, mutant.part) for mutant in MUTANTS if mutant.patch and mutant.kind != "search"
]


@pytest.mark.parametrize(("check", "part"), SOUND)
def test_the_parts_that_the_mutants_are_made_of_pass(check, part):
    """Or every mutant would be caught by the same fault."""
    check(part)
