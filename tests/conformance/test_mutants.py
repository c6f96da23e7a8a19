"""The checks object to parts that are broken on purpose; a check that lets them pass is none."""

from __future__ import annotations

import pytest
from conformance.codec_checks import check_codec
from conformance.exchange_checks import check_exchange, check_range_of
from conformance.fused_checks import check_kernels
from conformance.memory_checks import check_memory
from conformance.mutants import MUTANTS, caught
from conformance.pass_checks import check_passes_on_all
from conformance.replay_checks import check_replays
from conformance.selector_checks import check_selector

from hvd_sparse.codecs.index_value import IndexValue
from hvd_sparse.exchanges.allgather import AllGatherExchange
from hvd_sparse.exchanges.gtopk import GTopK
from hvd_sparse.exchanges.hierarchical import Hierarchical
from hvd_sparse.exchanges.oktopk import OkTopK
from hvd_sparse.exchanges.shared_index import SharedIndex
from hvd_sparse.kernels import reference
from hvd_sparse.memories.adam_correction import AdamCorrection
from hvd_sparse.memories.error_feedback import ErrorFeedback
from hvd_sparse.memories.momentum_correction import MomentumCorrection
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.radix_select import RadixSelect
from hvd_sparse.selectors.redsync_search import RedsyncSearch
from hvd_sparse.selectors.redsync_trimmed import RedsyncTrimmed
from hvd_sparse.selectors.topk import TopK

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
"""Where it matters why a mutant is caught."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_broken_part_is_caught(mutant):
    objection = caught(mutant)
    assert objection is not None, f"nothing objects to {mutant}"
    assert WORDS.get(str(mutant), "") in objection


def test_no_two_mutants_share_a_name_and_every_reason_is_of_one():
    names = [str(mutant) for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(WORDS) <= set(names)


SELECTORS = [
    part(0.1) for part in (TopK, LdteBs, DgcSampled, RedsyncTrimmed, RedsyncSearch, RadixSelect)
]


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (check_kernels, reference),
        *((check, part) for part in SELECTORS for check in (check_selector, check_passes_on_all)),
        (check_memory, ErrorFeedback()),
        (check_memory, MomentumCorrection()),
        (check_memory, MomentumCorrection(masking=False)),
        (check_memory, AdamCorrection()),
        (check_codec, IndexValue()),
        *(
            (check_exchange, exchange)
            for exchange in (AllGatherExchange(), SharedIndex(), GTopK(), OkTopK())
        ),
        *(
            (check_range_of, exchange)
            for exchange in (AllGatherExchange(), GTopK(), OkTopK(), Hierarchical(5))
        ),
        *((check_replays, exchange) for exchange in (AllGatherExchange(), SharedIndex())),
    ],
)
def test_the_parts_that_the_mutants_are_made_of_pass(check, part):
    """Or every mutant would be caught by the same fault."""
    check(part)
