"""How many entries and bytes a density asks for, and the bounds of messages and of memory."""

import cases
import numpy as np
import pytest
import worlds
from worlds import configure, tensors

from hvd_sparse.collectives.contract import in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, PeerFailure
from hvd_sparse.frontend.states import footprint
from hvd_sparse.kernels import reference
from hvd_sparse.memories.contract import DoubleBuffer
from hvd_sparse.registry import CODECS, MEMORIES, SELECTORS
from hvd_sparse.step.session import Session
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec
from hvd_sparse.wire.frame import HEADER_BYTES
from hvd_sparse.wire.message import capacity, overhead_bytes

SPECS = [*tensors((30, 20), (64, 3)), TensorSpec("short", (12,), "float32")]


HELD = [case for case in cases.MEMORIES if not case.create(MEMORIES).counts_votes]
# "none" refers to the gradient, and weight decay needs the optimizer's parameters.
HELD = [case for case in HELD if str(case) != "none" and "weight_decay" not in str(case)]


@pytest.mark.parametrize("case", HELD, ids=str)
@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("dense", [False, True])
def test_a_states_bytes_are_those_of_its_vectors(case, rollback, dense):
    memory = case.create(MEMORIES)
    configuration = configure(
        density=0.5, memory=memory, rollback=rollback, min_numel=100, allow_dense=dense
    )

    def script(collective):
        session = Session(configuration, SPECS, collective)
        session.reduce(worlds.integers(SPECS, collective.rank))
        states = session.step.transactions.settle_all().values()
        vectors = [each for state in states for each in vars(state.memory).values()]
        held = sum(x.nbytes for x in vectors if isinstance(x, (DoubleBuffer, np.ndarray)))
        return held, footprint(session.step, 2, lambda position: None)["state_bytes"]

    for held, told in worlds.run(2, script):
        assert held == told


def test_gathered_bytes_grow_with_ranks_and_density():
    step = Step(configure(density=0.01), tensors((1000, 1000)), [], reference)
    one, other = (footprint(step, n, lambda _: None)["gathered_bytes"] for n in (2, 8))
    assert other == 4 * one > 2 * 10_000 * 8


(SPEC,) = worlds.tensors((50, 40))
SIZE, LIMIT = 4, 4 * 400


def run(configuration, steps=4):
    def script(collective):
        session = Session(configuration, [SPEC], collective, average=False)
        given = [worlds.integers([SPEC], collective.rank, step) for step in range(steps)]
        applied, sizes, before = [], [], 0
        for gradients in given:
            applied.append(session.reduce(gradients)["t0"])
            sent = session.step.stats.bytes["payload"]
            sizes.append(sent - before)
            before = sent
        state = session.step.transactions.settle_all()[0]
        kept = state.memory.arrays()["residual"].reshape(SPEC.shape)
        dense = session.step.stats.report(None)["dense_steps"]
        total = sum(gradients["t0"].astype(np.float64) for gradients in given)
        return total, applied, kept.astype(np.float64), sizes, dense

    return worlds.run(SIZE, script)


@pytest.mark.parametrize(
    "case", [case for case in cases.SELECTORS if "share" not in str(case)], ids=str
)
def test_messages_stay_within_it_and_the_rest_in_the_residual(case):
    selector = case.create(SELECTORS, density=0.1)
    configuration = configure(selector, max_gathered_bytes=LIMIT)
    outcomes = run(configuration)
    for _, applied, _, sizes, _ in outcomes:
        assert max(sizes) <= LIMIT / SIZE
        assert all(worlds.same_bits(mine, first) for mine, first in zip(applied, outcomes[0][1]))
    if configuration.memory.conserves and not configuration.selector.changes_values:
        given, kept = (sum(outcome[place] for outcome in outcomes) for place in (0, 2))
        assert np.array_equal(given, sum(a.astype(np.float64) for a in outcomes[0][1]) + kept)
    assert any(np.any(a) for a in outcomes[0][1]), "nothing was applied at all"


CHANGING = [case for case in cases.SELECTORS if case.create(SELECTORS, density=0.1).changes_values]


@pytest.mark.parametrize("case", CHANGING, ids=str)
def test_of_entries_sent_with_equal_values_those_of_the_largest_accumulated_values_are_sent(case):
    selector = case.create(SELECTORS, density=0.1)
    configuration = configure(selector, max_gathered_bytes=LIMIT)
    applied = sum(np.abs(each) for each in run(configuration)[0][1])
    assert np.flatnonzero(applied).max() > 0.75 * SPEC.numel


def test_it_is_refused_without_a_residual_that_would_keep_the_rest():
    topk = {"id": "topk", "density": 0.1}
    for memory, selector in (("none", topk), ("majority_vote", "sign_vote")):
        parts = {"memory": memory, "selector": selector}
        Configuration.create(**parts)
        with pytest.raises(InvalidOption, match=r"keeps no residual.*: use memory='error_feedb"):
            Configuration.create(**parts, max_gathered_bytes=LIMIT)


def test_a_density_that_asks_for_more_goes_dense():
    for limit, dense in ((LIMIT, 4), (SIZE * (200 * 8 + 100), 0)):
        configuration = worlds.configure(density=0.1, max_gathered_bytes=limit, allow_dense=True)
        assert {outcome[4] for outcome in run(configuration)} == {dense}


@pytest.mark.parametrize("numel", [2000, 1999])
def test_under_hierarchical_a_rank_sends_entries_of_its_part_only(numel):
    spec, placement = TensorSpec("t", (numel,), "float32"), in_nodes_of(2, 0, 5)
    parts = [placement.part(rank, numel) for rank in range(5)]
    assert placement.longest_part(numel) == max(part.stop - part.start for part in parts)
    # The fifth rank is alone on its node.
    for ranks, entries in ((4, numel // 2), (5, numel)):
        exchange, nodes = {"id": "hierarchical", "ranks_per_node": 2}, in_nodes_of(2, 0, ranks)
        for spare, is_dense in ((100, False), (-8, True)):
            limit = ranks * (entries // 10 * 8 + spare)
            asked = {"density": 0.1, "max_gathered_bytes": limit, "allow_dense": True}
            configuration = worlds.configure(**asked, exchange=exchange)
            assert configuration.goes_dense(spec, 0, ranks, placement=nodes) == is_dense


@pytest.mark.parametrize("case", cases.CODECS, ids=str)
@pytest.mark.parametrize("gathered_bytes", [1, 1000, 3600, 10_000, 1_000_000])
@pytest.mark.parametrize("wanted", [0, 60, 4999, 5000])
def test_a_capacity_is_the_most_that_fits(case, gathered_bytes, wanted):
    codec = case.create(CODECS).at_density(0.01)
    most = capacity(codec, wanted, 5000, 4, 4, gathered_bytes)
    room = gathered_bytes / 4 - overhead_bytes(1) - HEADER_BYTES
    fitting = [count for count in range(wanted + 1) if codec.body_bytes(count, 5000) <= room]
    assert most == max([0, *fitting])


def test_a_format_that_is_shorter_for_all_entries_stays_within_it_if_some_are_zero():
    """All 2000 signs need 250 bytes, and fewer signs also a bitmap of 250 bytes."""
    configuration = configure({"id": "ef_sign"}, codec="one_bit", max_gathered_bytes=LIMIT)
    for _, _, _, sizes, _ in run(configuration):
        assert max(sizes) <= LIMIT / SIZE


BITMAP = {"selector": {"id": "topk", "density": 0.1}, "codec": "bitmap"}
LEAST = SIZE * (overhead_bytes(1) + HEADER_BYTES + SPEC.numel // 8 + 4)
"""Bytes of all ranks' messages with a bitmap and one value."""


def test_a_step_goes_dense_if_its_only_entry_needs_more():
    parts = {"selector": {"id": "topk", "density": 1 / SPEC.numel}, "codec": "bitmap"}
    for limit, dense in ((LEAST, 0), (LEAST - 1, 4)):
        configuration = configure(**parts, max_gathered_bytes=limit, allow_dense=True)
        assert {outcome[4] for outcome in run(configuration)} == {dense}


@pytest.mark.parametrize(
    "selector", [BITMAP["selector"], {"id": "fixed_threshold", "threshold": 1}]
)
def test_where_no_step_may_be_dense_a_bound_below_a_message_with_one_entry_is_refused(selector):
    parts = {**BITMAP, "selector": selector}
    for _, _, _, sizes, _ in run(configure(**parts, max_gathered_bytes=LEAST)):
        assert max(sizes) <= LEAST / SIZE
    words = (
        f"'t0': max_gathered_bytes is {LEAST - 1}, but .* {SIZE} ranks .* have {LEAST} bytes .*"
        "'bitmap': raise max_gathered_bytes"
    )
    with pytest.raises(PeerFailure, match=words):
        run(configure(**parts, max_gathered_bytes=LEAST - 1))
