"""``select_over="group"``: one selection from all tensors that travel together; everything else stays a tensor's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cases
import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.core.buckets import grouped
from hvd_sparse.core.configuration import Configuration
from hvd_sparse.core.counts import count_from_density
from hvd_sparse.core.selectors._base import Context, Found
from hvd_sparse.core.selectors.topk import TopK
from hvd_sparse.core.session import Session
from hvd_sparse.errors import InvalidOption, PeerFailure
from hvd_sparse.registry import CODECS, EXCHANGES, MEMORIES, SELECTORS
from hvd_sparse.types import TensorSpec

SPECS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8))
KEYS = [spec.key for spec in SPECS]
NUMEL = sum(spec.numel for spec in SPECS)
MERGED = [case for case in cases.SELECTORS if not SELECTORS.get(case.id).needs_gradient]
ABSENT = {3: ("t1", "t4"), 4: ("t0", "t1", "t2", "t3")}
"""Tensors without a gradient, by step."""


def configure(case=None, density=0.05, **options):
    """Everything in one group, unless told otherwise."""
    plain = worlds.configure(density=density, **{"select_over": "group", "groups": 1, **options}).describe()
    if case is None:
        return Configuration.create(**plain)
    selector = case.create(SELECTORS, density=density)
    schedule = plain["schedule"] if hasattr(selector, "density") else None
    return Configuration.create(**{**plain, "selector": selector, "schedule": schedule})


def train(configuration, ranks=3, plans=(), steps=8, absent=ABSENT, draw=worlds.integers, specs=SPECS):
    """By rank: what was given, applied (not averaged) and is kept, the report, and all bits of the memories.

    plans : that of step i is plans[i]
    """

    def script(collective):
        session = Session(configuration, specs, collective, average=False)
        given, applied = [], []
        for step in range(steps):
            if plans:
                session.step.regroup(grouped(specs, worlds.configure(groups=plans[step % len(plans)])))
            gradients = draw(specs, collective.rank, step)
            given.append({key: value for key, value in gradients.items() if key not in absent.get(step, ())})
            applied.append(session.reduce(given[-1]))
        memories = {specs[i].key: state.memory.arrays() for i, state in session.step.staging.settle_all().items()}
        residuals = {key: arrays["residual"].copy() for key, arrays in memories.items() if arrays}
        kept = {key: {name: a.tobytes() for name, a in arrays.items()} for key, arrays in memories.items()}
        return given, applied, residuals, session.step.stats.report(None), kept

    return worlds.run(ranks, script)


def bits(outcomes):
    applied = [{key: value.tobytes() for key, value in step.items()} for step in outcomes[0][1]]
    return applied, [outcome[4] for outcome in outcomes]


def lost(outcomes):
    """By tensor: what was given to all ranks and was neither applied nor kept."""
    balance = {}
    for spec in SPECS:
        given = sum(step[spec.key].astype(np.float64) for o in outcomes for step in o[0] if spec.key in step)
        applied = sum(step[spec.key].astype(np.float64) for step in outcomes[0][1] if spec.key in step)
        kept = sum(outcome[2][spec.key].astype(np.float64) for outcome in outcomes).reshape(spec.shape)
        balance[spec.key] = given - applied - kept
    return balance


PLANS = [1, 1, [["t0", "t3"], ["t1", "t2", "t4"]], 2, 50, [["t0", "t4"]], 1, 1]


@pytest.mark.parametrize("case", MERGED, ids=str)
@pytest.mark.parametrize("plans", [(), PLANS], ids=["one plan", "many plans"])
def test_nothing_is_lost_and_replicas_are_the_same_bits(case, plans):
    """Laws 1 and 2: also where gradients are missing, and where other tensors travel together in mid-run."""
    configuration = configure(case)
    outcomes = train(configuration, plans=plans)
    first, *others = outcomes
    for other in others:
        for mine, theirs in zip(first[1], other[1]):
            assert mine.keys() == theirs.keys()
            assert all(worlds.same_bits(mine[key], theirs[key]) for key in mine)
    for balance in lost(outcomes).values():
        if configuration.selector.changes_values:
            assert np.abs(balance).max() < 1e-3
        else:
            assert not balance.any()
    assert any(value.any() for value in first[1][0].values()), "nothing was applied at all"


@pytest.mark.parametrize("case", MERGED, ids=str)
def test_a_group_of_one_tensor_gives_the_bits_of_selection_by_tensor(case):
    alone = configure(case, groups=50)
    by_tensor = configure(case, groups=50, select_over="tensor")
    assert bits(train(alone, draw=worlds.normals)) == bits(train(by_tensor, draw=worlds.normals))


@pytest.mark.parametrize("case", [case for case in MERGED if not SELECTORS.get(case.id).needs_rng], ids=str)
def test_the_first_selection_is_the_selectors_own_from_the_joined_vector(case):
    configuration = configure(case)
    given, applied, *_ = train(configuration, ranks=1, steps=1)[0]
    joined = np.concatenate([given[0][key].reshape(-1) for key in KEYS])
    chosen = configuration.selector.select(joined)
    expected = np.zeros_like(joined)
    expected[chosen.indices] = chosen.values
    assert worlds.same_bits(np.concatenate([applied[0][key].reshape(-1) for key in KEYS]), expected)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=6),
    owners=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    density=st.sampled_from([0.01, 0.1, 0.37, 0.9, 1.0]),
    dtype=st.sampled_from(["float32", "float64"]),
    draw=st.sampled_from([worlds.integers, worlds.normals]),
    codec=st.sampled_from([{"id": id, "values": "float32"} for id in ("golomb", "block16", "auto")]),
)
def test_top_k_of_a_group_is_top_k_of_its_tensors_as_one(shapes, owners, density, dtype, draw, codec):
    """Step after step, with what was kept back, for any partition; ties to the tensor that was registered first."""
    specs = worlds.tensors(*shapes, dtype=dtype)
    groups = [[spec.key for spec, owner in zip(specs, owners) if owner == number] for number in range(3)]
    configuration = worlds.configure(density=density, select_over="group", groups=groups, codec=codec)
    ((given, applied, kept, *_),) = train(configuration, ranks=1, steps=3, absent={}, draw=draw, specs=specs)
    sizes = {spec.key: spec.numel for spec in specs}
    for members in filter(None, groups):
        residual = np.zeros(sum(sizes[key] for key in members), dtype)
        for gradients, results in zip(given, applied):
            residual += np.concatenate([gradients[key].reshape(-1) for key in members])
            chosen = TopK(density).select(residual)
            expected = np.zeros_like(residual)
            expected[chosen.indices] = chosen.values
            residual[chosen.indices] = 0
            assert worlds.same_bits(np.concatenate([results[key].reshape(-1) for key in members]), expected)
        assert worlds.same_bits(np.concatenate([kept[key] for key in members]), residual)


@pytest.mark.parametrize("memory", cases.MEMORIES, ids=str)
def test_at_density_one_it_makes_no_difference_to_any_memory(memory):
    made = memory.create(MEMORIES)
    if memory.options.get("weight_decay"):
        made = replace(made, weight_decay=0.0)  # sessions have no parameters
    options = {"density": 1.0, "memory": made}
    merged, by_tensor = (configure(**options, select_over=over) for over in ("group", "tensor"))
    assert bits(train(merged, draw=worlds.normals)) == bits(train(by_tensor, draw=worlds.normals))


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize("codec", cases.CODECS, ids=str)
def test_every_codec_carries_a_tensors_share_and_the_memory_keeps_its_rounding(codec, rollback):
    outcomes = train(configure(codec=codec.create(CODECS), rollback=rollback), draw=worlds.normals)
    for balance in lost(outcomes).values():
        assert np.abs(balance).max() < 1e-3
    assert any(value.any() for value in outcomes[0][1][0].values())


def test_the_density_is_the_groups_and_its_tensors_compete():
    """A tensor a hundred times as large gets all of it, and the others are served when it is quiet."""

    def draw(specs, rank, step):
        gradients = worlds.normals(specs, rank, step)
        return {**gradients, "t2": gradients["t2"] * (100 if step < 2 else 0)}

    outcomes = train(configure(), steps=6, absent={}, draw=draw)
    report = outcomes[0][3]
    assert report["entries_sent"] == 6 * count_from_density(NUMEL, 0.05)
    assert report["entries_total"] == 6 * NUMEL
    assert report["density_achieved"] == report["entries_sent"] / report["entries_total"]
    for key in KEYS:
        first, last = outcomes[0][1][0][key], outcomes[0][1][-1][key]
        assert np.any(first) == (key == "t2")
        assert np.any(last) or key == "t2" or not np.any(first)


def test_a_schedule_gives_the_groups_density_at_every_step():
    schedule = {"id": "piecewise", "boundaries": (2, 5), "densities": (0.5, 0.1, 0.01)}
    outcomes = train(configure(schedule=schedule), ranks=1, steps=7, absent={}, draw=worlds.normals)
    sent = [sum(int(np.count_nonzero(value)) for value in step.values()) for step in outcomes[0][1]]
    assert sent == [count_from_density(NUMEL, d) for d in (0.5, 0.5, 0.1, 0.1, 0.1, 0.01, 0.01)]


def test_the_groups_step_is_that_of_its_furthest_tensor():
    schedule = {"id": "piecewise", "boundaries": (2,), "densities": (0.5, 0.01)}
    late = {0: ("t0", "t3"), 1: ("t0", "t4")}
    outcomes = train(configure(schedule=schedule), ranks=1, steps=3, absent=late, draw=worlds.normals)
    assert sum(int(np.count_nonzero(value)) for value in outcomes[0][1][2].values()) == count_from_density(NUMEL, 0.01)


def test_a_tensor_whose_step_runs_dense_is_not_in_the_vector():
    """t2 alone asks for more bytes than a tensor may gather, so that it goes dense and the others share their k."""
    options = {"density": 0.2, "max_gathered_bytes": 1000, "allow_dense": True}
    outcomes = train(configure(**options), ranks=1, steps=2, absent={}, draw=worlds.normals)
    report = outcomes[0][3]
    assert report["tensors"]["t2"]["dense_steps"] == 2
    assert report["entries_total"] == 2 * (NUMEL - 600)
    assert report["entries_sent"] == 2 * count_from_density(NUMEL - 600, 0.2)


def test_a_share_is_bounded_and_the_rest_stays():
    outcomes = train(configure(density=0.3, max_gathered_bytes=3 * 300))
    most = max(int(np.count_nonzero(step[key])) for step in outcomes[0][1] for key in step)
    assert 0 < most <= 3 * 300 // 8
    assert not any(balance.any() for balance in lost(outcomes).values())


@dataclass(frozen=True)
class Told(TopK):
    """Top-k that writes down what it was given to select from, and the threshold it was given to start at."""

    id: ClassVar[str] = "told"
    log: ClassVar[list[Any]] = []

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        assert context.moments == context.kernels.moments(accumulated)  # exact, of whole numbers
        self.log.append((accumulated.size, context.warm is not None))
        return super().find(accumulated, context)

    def aim(self, numel: int, warm: float | None, memo: Any) -> None:
        return None


def told(plans, steps, absent):
    Told.log.clear()
    train(replace(configure(), selector=Told(0.05)), ranks=1, plans=plans, steps=steps, absent=absent)
    return list(Told.log)


COLD, WARM = False, True


def test_a_group_starts_where_just_its_tensors_ended_and_any_other_starts_cold():
    sizes = dict(zip(KEYS, (spec.numel for spec in SPECS)))
    pair = [["t0", "t3"], ["t1", "t2", "t4"]]
    small, large = sizes["t0"] + sizes["t3"], NUMEL - sizes["t0"] - sizes["t3"]
    assert told([1, 1, pair, pair, 1, 1], 6, {}) == [
        *[(NUMEL, COLD), (NUMEL, WARM)],
        *[(small, COLD), (large, COLD), (small, WARM), (large, WARM)],
        *[(NUMEL, COLD), (NUMEL, WARM)],
    ]


def test_a_group_of_as_many_tensors_with_the_same_first_is_another_group():
    """t4 rests while t0 is selected with t3, so that all of the group were last selected in some group of t0 and one more."""
    pair = SPECS[0].numel + SPECS[4].numel
    log = told([[["t0", "t4"]], [["t0", "t3"]], [["t0", "t4"]]], 3, {1: ("t4",)})
    assert [is_warm for size, is_warm in log if size == pair] == [COLD, COLD]


def test_the_only_gradient_of_a_group_is_selected_from_as_alone():
    only = {0: KEYS[:4], 1: KEYS[:4], 2: KEYS[:4]}
    assert told([1, 50, 1], 3, only) == [(512, COLD), (512, WARM), (512, WARM)]


def test_a_group_that_lacks_a_gradient_is_another_group():
    rest = NUMEL - SPECS[1].numel
    assert told([1], 5, {2: ("t1",)}) == [(NUMEL, COLD), (NUMEL, WARM), (rest, COLD), (NUMEL, COLD), (NUMEL, WARM)]


def test_a_tensor_that_was_selected_in_a_group_starts_cold_alone_and_the_other_way_round():
    log = told([1, 50, 50, 1], 4, {})
    sizes = [(spec.numel, is_warm) for is_warm in (COLD, WARM) for spec in SPECS]
    assert sorted(log[1:-1]) == sorted(sizes)
    assert log[0] == log[-1] == (NUMEL, COLD)


@dataclass(frozen=True)
class Fragile(TopK):
    """Top-k that fails where a vector begins with 77."""

    id: ClassVar[str] = "fragile"

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        if float(accumulated[0]) == 77.0:
            raise ArithmeticError("no threshold to be found")
        return super().find(accumulated, context)


@pytest.mark.parametrize("rollback", [True, False])
def test_a_selection_that_fails_on_one_rank_fails_on_all_and_leaves_no_trace(rollback):
    """The carriers are gone by then, so that the words travel in the message."""
    groups = [["t0", "t3"], ["t1", "t2"]]
    configuration = replace(configure(rollback=rollback, groups=groups), selector=Fragile(0.05))

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        session.reduce(worlds.integers(SPECS, collective.rank, 0))
        before = worlds.snapshot(session)
        broken = worlds.integers(SPECS, collective.rank, 1)
        if collective.rank == 1:
            broken["t1"].reshape(-1)[0] = 77.0 - worlds.residuals(session)["t1"][0]
        with pytest.raises(PeerFailure) as caught:
            session.reduce(broken)
        after = worlds.snapshot(session)
        whole = session.reduce(worlds.integers(SPECS, collective.rank, 2))
        return str(caught.value), before == after, all(np.isfinite(value).all() for value in whole.values())

    for words, is_same, is_finite in worlds.run(3, script):
        assert "rank 1: selecting from 't1', 't2' as one: ArithmeticError: no threshold to be found" in words
        assert is_same or not rollback
        assert is_finite


@pytest.mark.parametrize("rollback", [True, False])
def test_nan_in_one_tensor_of_a_group_is_seen_in_that_one_and_nothing_is_lost(rollback):
    def script(collective):
        session = Session(configure(rollback=rollback), SPECS, collective, average=False)
        session.reduce(worlds.integers(SPECS, collective.rank, 0))
        before, kept = worlds.snapshot(session), worlds.residuals(session)
        broken = worlds.integers(SPECS, collective.rank, 1)
        if collective.rank == 1:
            broken["t1"][0, 0] = np.nan
        results = session.reduce(broken)
        after = worlds.residuals(session)
        grown = {key: kept[key] + np.nan_to_num(broken[key]).reshape(-1) for key in KEYS}
        is_kept = all(((after[k] == kept[k]) | ((after[k] == grown[k]) & (not rollback))).all() for k in KEYS)
        return results, before == worlds.snapshot(session), is_kept, session.step.stats.nonfinite_steps

    for results, is_same, is_kept, nonfinite_steps in worlds.run(3, script):
        assert {key for key, value in results.items() if not np.isfinite(value).all()} == {"t1"}
        assert is_same or not rollback
        assert is_kept
        assert nonfinite_steps == 1


@pytest.mark.parametrize("case", cases.EXCHANGES, ids=str)
def test_exchanges_that_choose_tensor_by_tensor_are_refused(case):
    exchange = case.create(EXCHANGES)
    if exchange.settles_later or exchange.sums_first:
        with pytest.raises(InvalidOption, match=rf"select_over is 'group', and exchange {case.id} .*'allgather'"):
            configure(exchange=exchange)
    else:
        outcomes = train(configure(exchange=exchange))
        assert not any(balance.any() for balance in lost(outcomes).values())


def test_the_automatic_exchange_takes_one_that_can():
    """With these costs of a collective and a byte, Ok-Topk would be quicker on 16 ranks."""
    exchange = {"id": "auto", "latency_ms": 1e-6, "bandwidth_gbit": 1e-3}

    def script(collective, over):
        session = Session(configure(exchange=exchange, select_over=over, density=0.5), SPECS, collective)
        return session.step.exchange.id

    assert set(worlds.run(16, lambda c: script(c, "group"))) == {"allgather"}
    assert set(worlds.run(16, lambda c: script(c, "tensor"))) != {"allgather"}


@pytest.mark.parametrize("case", [case for case in cases.SELECTORS if case not in MERGED], ids=str)
def test_selectors_that_compare_a_tensors_gradient_with_its_residual_are_refused(case):
    with pytest.raises(InvalidOption, match=f"select_over is 'group', and {case.id} compares .* use another selector"):
        configure(case)


DOUBLE = [*SPECS[:2], TensorSpec("d", (30, 4), "float64"), *SPECS[2:]]


def test_small_neighbours_of_other_precision_are_not_grouped_with_each_other():
    assert grouped(DOUBLE, configure(groups=None)) == [(3, 4, 5), (2,), (0, 1)]
    assert grouped(DOUBLE, configure(groups=None, select_over="tensor")) == [(0, 1, 2, 3, 4, 5)]
    outcomes = train(configure(groups=None), ranks=2, specs=DOUBLE)
    assert not any(balance.any() for balance in lost(outcomes).values())


def test_groups_that_were_asked_for_and_cannot_be_one_vector_are_refused_by_name():
    def script(collective):
        words = []
        for groups in ([["t0", "d"]], 1):
            with pytest.raises(InvalidOption) as caught:
                Session(configure(groups=groups), DOUBLE, collective)
            words.append(str(caught.value))
        session = Session(configure(groups=50), DOUBLE, collective)
        with pytest.raises(InvalidOption) as caught:
            session.step.regroup([(0, 1, 2, 3, 4, 5)])
        return [*words, str(caught.value)]

    for words in worlds.run(1, script)[0]:
        assert "tensors 't0' and 'd' of one group are accumulated in float32 and float64" in words
        assert "name groups without these together, or use select_over='tensor'" in words


def test_groups_of_more_entries_than_indices_can_number_are_refused():
    specs = worlds.tensors((2**16, 2**15), (2**16, 2**15))

    def script(collective):
        with pytest.raises(InvalidOption, match=r"2 tensors of a group from 't0' to 't1' have 4294967296 entries"):
            Session(configure(), specs, collective)

    worlds.run(1, script)
    assert grouped(specs, configure(density=1e-9, groups=None)) == [(1,), (0,)]


def test_the_residuals_norm_is_told_before_anything_leaves():
    def script(collective):
        session = Session(configure(telemetry=True), SPECS, collective, average=False)
        flat = {i: worlds.normals(SPECS, 0)[spec.key].reshape(-1) for i, spec in enumerate(SPECS)}
        tickets = {i: session.driver.compress(i, gradient)[1] for i, gradient in flat.items()}
        return [(tickets[i].sent.norm, float(np.linalg.norm(flat[i]))) for i in flat]

    for told_norm, norm in worlds.run(1, script)[0]:
        assert told_norm == norm
