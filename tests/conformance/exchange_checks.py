"""Checks that every exchange must pass. Numbers in brackets are those of the invariants."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import worlds
from cases import Case
from worlds import bits_of, residuals

from hvd_sparse.errors import NonFiniteGradient, PeerFailure
from hvd_sparse.selectors.contract import DensitySelector, Found
from hvd_sparse.step.session import Session

SPECS = worlds.tensors((40,), (7, 9), (300,))
DENSITY = 0.1
STEPS = 5
COMMON = [Case("random_k", {"shared_seed": True}), Case("chunked", {"chunk_length": 3})]
"""Selectors whose indices all ranks find alike, so that their values are summed."""


@dataclass(frozen=True)
class Everything(DensitySelector):
    id: ClassVar[str] = "everything"

    def find(self, accumulated, context):
        return Found(context.kernels.take_at_least(accumulated, 0.0))


def configured(exchange, selector="topk", **options):
    plain = worlds.configure(density=DENSITY, **options)
    if not isinstance(selector, str):
        return replace(plain, exchange=exchange, selector=selector)
    return replace(worlds.configure(selector, DENSITY, **options), exchange=exchange)


def run_steps(
    configuration, world_size, gradients, steps=STEPS, *, specs=SPECS, pace_of=None, **options
):
    """Return for every rank the gradients, the results, the residuals and the session, whose
    results are sums unless ``options`` say otherwise.

    pace_of : function of a step's number, for schedules that depend on the learning rate
    """

    def script(collective):
        session = Session(configuration, specs, collective, **{"average": False, **options})
        given, applied = [], []
        for step in range(steps):
            if pace_of is not None:
                pace = pace_of(step)
                session.step.pace_of = lambda position, pace=pace: pace
            given.append(gradients(collective.rank, step))
            applied.append(session.reduce(given[-1]))
        return {"given": given, "applied": applied, "kept": residuals(session), "session": session}

    return worlds.run(world_size, script)


def lost(outcomes):
    total = 0.0
    for spec in SPECS:
        given = sum(
            g[spec.key].astype(np.float64).reshape(-1) for o in outcomes for g in o["given"]
        )
        applied = sum(a[spec.key].astype(np.float64).reshape(-1) for a in outcomes[0]["applied"])
        kept = sum(outcome["kept"][spec.key].astype(np.float64) for outcome in outcomes)
        total += float(np.abs(given - applied - kept).sum())
    return total


def normals(rank, step):
    return worlds.normals(SPECS, rank, step)


def integers(rank, step):
    return worlds.integers(SPECS, rank, step)


def uneven(rank, step):
    gradients = {}
    for spec in SPECS:
        k = int(spec.numel * DENSITY)
        count = (0, 1, k, 2 * k)[(rank + step) % 4]
        flat = np.zeros(spec.numel, np.float32)
        rng = np.random.default_rng([rank, step, spec.numel])
        flat[rng.permutation(spec.numel // 2)[:count]] = rng.integers(
            1, 10, min(count, spec.numel // 2)
        )
        gradients[spec.key] = flat.reshape(spec.shape)
    return gradients


def check_replicas(exchange, world_size, **options):
    """(24) All ranks apply the same bits."""
    for outcomes in (
        run_steps(configured(exchange, **options), world_size, normals),
        run_steps(configured(exchange, Everything(DENSITY), **options), world_size, uneven),
    ):
        assert_replicas(outcomes)


def assert_replicas(outcomes):
    for step, (first, *others) in enumerate(zip(*(each["applied"] for each in outcomes))):
        for key, expected in first.items():
            is_same = all(worlds.same_bits(other[key], expected) for other in others)
            assert is_same, f"ranks apply different bits: {key} at step {step}"


def check_conservation(exchange, world_size, **options):
    """(3, 25) The sum of applied and kept entries equals the sum of the gradients exactly, also if
    ranks send different numbers of entries."""
    everywhere = run_steps(configured(exchange, **options), world_size, integers)
    uneven_runs = run_steps(
        configured(exchange, Everything(DENSITY), **options), world_size, uneven
    )
    every = {"topk": everywhere, "uneven": uneven_runs}
    if not exchange.sums_first:  # refused without rollback
        one_buffer = configured(exchange, rollback=False, **options)
        every["one buffer"] = run_steps(one_buffer, world_size, integers)
    for name, outcomes in every.items():
        if exchange.conserves:
            assert lost(outcomes) == 0.0, f"mass is lost: world of {world_size}, {name}"
    applied = everywhere[0]["applied"][0].values()
    assert any(np.any(a) for a in applied), "nothing was applied at all"


def with_one_bad_step(session, broken, scale=1.0):
    """Make a good step, one with the gradients ``broken``, and a good one. Return the residuals
    before and after the broken step, its results, its error, and whether the last results are
    finite."""
    rank = session.collective.rank
    session.reduce(integers(rank, 0), scale)
    before, results, error = residuals(session), None, None
    try:
        results = session.reduce(broken, scale)
    except Exception as raised:
        error = raised
    after, then = residuals(session), session.reduce(integers(rank, 2), scale)
    return before, after, results, error, all(np.isfinite(value).all() for value in then.values())


def with_nan(configuration, world_size):
    """Return for every rank the gradients of a step in which the last rank has a NaN, and what
    ``with_one_bad_step`` returns."""

    def script(collective):
        session = Session(configuration, SPECS, collective, average=False)
        broken = integers(collective.rank, 1)
        if collective.rank == world_size - 1:
            broken["t1"][0, 0] = np.nan
        return broken, *with_one_bad_step(session, broken)

    return worlds.run(world_size, script)


def check_failures(exchange, world_size, **options):
    configuration = configured(exchange, on_nonfinite="raise", **options)
    named = f"rank {world_size - 1}: NonFiniteGradient: tensor 't1': 1 of 63 entries"
    for rank, outcome in enumerate(with_nan(configuration, world_size)):
        _, before, after, _, error, is_finite = outcome
        assert isinstance(error, PeerFailure), f"rank {rank}: {error!r}"
        assert named in str(error), f"rank {rank}: {error}"
        assert bits_of(after) == bits_of(before), f"rank {rank}: the failed step left a trace"
        assert is_finite


def beyond_range(world_size):
    """Return a number whose sum overflows float32 over all ranks, but not over fewer ranks."""
    return np.float32(1.1 * float(np.finfo(np.float32).max) / world_size)


def check_range(configuration, world_size, scale=1.0):
    """(ADR 18) If gradients are finite and their sum overflows, the result is NaN in this tensor or
    an error, and residuals do not change."""

    def script(collective):
        for how, average in (("propagate", False), ("raise", scale <= 1)):
            made = replace(configuration, on_nonfinite=how, name=how)
            session = Session(made, SPECS, collective, average=average)
            broken, too_much = integers(collective.rank, 1), beyond_range(world_size)
            broken["t1"] = np.full_like(broken["t1"], too_much * np.float32(min(scale, 1.0)))
            before, after, results, error, is_finite = with_one_bad_step(session, broken, scale)
            where = f"rank {collective.rank}, {how}"
            if how == "raise":
                assert isinstance(error, NonFiniteGradient), f"{where}: {error!r}"
                seen = {key: key not in str(error) for key in broken}
            else:
                assert error is None, f"{where}: {error!r}"
                seen = {key: bool(np.isfinite(a).all()) for key, a in results.items()}
            assert seen == {key: key != "t1" for key in seen}, f"{where}: finite are {seen}"
            assert bits_of(after) == bits_of(before), f"{where}: the step left a trace"
            assert is_finite
            assert {state.steps for state in session.step.transactions.settle_all().values()} <= {2}

    worlds.run(world_size, script)


def check_range_of(exchange):
    for world_size in (2, 5):
        check_range(configured(exchange), world_size)


def check_nonfinite(exchange, world_size, rollback, selector="topk", **options):
    """If one rank has NaN, all ranks get NaN in this tensor, and no entry is lost."""
    configuration = configured(exchange, selector, rollback=rollback, **options)
    for rank, outcome in enumerate(with_nan(configuration, world_size)):
        broken, before, after, results, error, is_finite = outcome
        assert error is None, f"rank {rank}: {error!r}"
        good = {key: bool(np.isfinite(value).all()) for key, value in results.items()}
        assert good == {key: key != "t1" for key in good}, f"rank {rank}: {good}"
        assert is_finite
        if exchange.sums_first and not rollback:
            continue  # what stays is the node's sum, which no rank can tell from its own gradient
        for key, old in before.items():
            grown = old + np.nan_to_num(broken[key].reshape(-1).astype(old.dtype), nan=0.0)
            is_kept = (after[key] == old) | ((after[key] == grown) & (not rollback))
            assert is_kept.all(), f"rank {rank}: {key} lost or gained something"
            assert not rollback or after[key].tobytes() == old.tobytes()


def check_exchange(exchange):
    for world_size in (2, 5):
        check_replicas(exchange, world_size)
        check_conservation(exchange, world_size)
