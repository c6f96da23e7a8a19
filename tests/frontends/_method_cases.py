"""Cases of every method and exchange, their gradients, and the numpy engine's results."""

import hashlib

import numpy as np
from harness import LIMIT_S

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.step.session import Session

STEPS = 6
SHAPES = ((30, 20), (9,), (6, 5, 4))
METHODS = {
    "adacomp": {"bin_length": 20},
    "chunked": {"density": 0.2, "chunk_length": 8},
    "dgc": {"density": 0.1},
    "ef_sign": {},
    "gaussian_k": {"density": 0.1},
    "gtopk": {"density": 0.1},
    "ldte": {"density": 0.1},
    "ldte_bs": {"density": 0.1},
    "mgs": {"density": 0.1},
    "oktopk": {"density": 0.1, "period": 3},
    "radix_select": {"density": 0.1},
    "random_k": {"density": 0.1, "shared_seed": True},
    "redsync": {"density": 0.1, "search": True},
    "sbc": {"density": 0.1},
    "scalecom": {"density": 0.1, "beta": 0.5},
    "sidco": {"density": 0.1, "distribution": "gamma", "stages": 2},
    "signsgd": {},
    "stc": {"density": 0.1},
    "strom": {"threshold": 1.5},
    "terngrad": {},
    "topk": {"density": 0.1},
}
OVER_GROUPS = ("mgs",)
"""Methods that select once from all tensors of a group."""

_TOPK = {"id": "topk", "density": 0.1}


def _topk(**more):
    return {"selector": _TOPK, **more}


_CODECS = ["block16", {"id": "block16", "values": "float16"}, "golomb", "run16", "bitmap"]
_CODECS += [{"id": "golomb", "values": "int8"}, {"id": "auto", "values": "float32"}, "dense"]

BUILT = {
    "chunks_of_each_rank": {"selector": {"id": "chunked", "density": 0.2, "chunk_length": 8}},
    "redsync_trimmed": {"selector": {"id": "redsync_trimmed", "density": 0.1}},
    "signs_in_turns": {
        "selector": {"id": "redsync_signs", "density": 0.1},
        "memory": "momentum_correction",
        "codec": "sign_index",
    },
    "fixed_threshold": {"selector": {"id": "fixed_threshold", "threshold": 1.5}},
    "low_pass": _topk(memory={"id": "low_pass", "beta": 0.5}),
    "no_memory": _topk(memory="none"),
    "one_buffer": _topk(rollback=False),
    "warm_up": _topk(schedule={"id": "exponential_warmup", "stage_steps": 2}),
    "density_by_tensor": {
        "selector": {"id": "topk", "density": {"*": 0.05, "*2*": 0.2}},
        "schedule": {"id": "exponential_warmup", "stage_steps": 2},
    },
    "chunk_wise_leader": {
        "selector": {"id": "chunk_max", "density": 0.1},
        "exchange": "shared_index",
    },
    "hierarchical": _topk(exchange={"id": "hierarchical", "ranks_per_node": 2}),
    "auto": _topk(exchange="auto"),
    "piecewise": _topk(schedule={"id": "piecewise", "boundaries": [3], "densities": [0.2, 0.1]}),
    **{f"codec_{number}": _topk(codec=codec) for number, codec in enumerate(_CODECS)},
}
"""Options of ``Compression.build`` for the parts that no named method uses."""


STAYING = {
    "dgc_sampled": {"selector": {"id": "dgc_sampled", "density": 0.1}},
    "random_of_each_rank": {"selector": {"id": "random_k", "density": 0.1}},
    "reused_threshold": {"selector": {"id": "reused_threshold", "density": 0.1}},
    "chunk12": _topk(codec="chunk12"),
    "dense_at_first": _topk(schedule={"id": "dense_warmup", "value": 0.1, "warmup_steps": 2}),
    "momentum": _topk(memory="momentum_correction"),
    "momentum_feedback": _topk(memory="momentum_feedback"),
    "momentum_and_decay": {
        "selector": {"id": "ldte_bs", "density": 0.1},
        "memory": {"id": "momentum_correction", "nesterov": True, "weight_decay": 0.1},
        "codec": {"id": "golomb", "values": "int8"},
    },
    "adam": _topk(memory="adam_correction"),
    "muon": _topk(memory="muon_correction"),
    "constant": _topk(schedule={"id": "constant", "value": 0.1}),
}
"""Options of ``Compression.build`` for parts that no named method runs on the device."""

OPTIONS_ON_DEVICES = {
    "rollback": False,
    "select_over": "group",
    "check_replicas_every": 2,
    "telemetry": True,
    "engine": "numpy",
    "max_gathered_bytes": 400,
    "on_nonfinite": "raise",
}

NAN_STEP, BEYOND_STEP = FAILING_STEPS = 3, 5
"""Failing steps: one rank has NaN; all gradients are finite, but their sum is not."""
IN_A_GROUP = "_in_a_group"
"""End of the names of cases in which all tensors are in one of Horovod's groups."""
_ALL_ABOVE = {"id": "fixed_threshold", "threshold": 0.5, "max_density": 1.0}

EXCHANGES = {
    "over_allgather": {"selector": _ALL_ABOVE, "exchange": "allgather"},
    "over_shared_index": _topk(exchange="shared_index"),
    "over_shared_index_by_threshold": {"selector": _ALL_ABOVE, "exchange": "shared_index"},
    "over_shared_draws": {
        "selector": {"id": "random_k", "density": 0.1, "shared_seed": True},
        "exchange": "shared_index",
    },
    "over_shared_chunks": {
        "selector": {"id": "chunked", "density": 0.2, "chunk_length": 6},
        "exchange": "shared_index",
    },
    "over_gtopk": _topk(exchange="gtopk"),
    "over_gtopk_as_published": _topk(exchange={"id": "gtopk", "conserving": False}),
    "over_oktopk": _topk(exchange={"id": "oktopk", "period": 2}),
    "over_oktopk_in_regions": _topk(exchange={"id": "oktopk", "least_entries": 1}),
    "over_hierarchical": {
        "selector": _ALL_ABOVE,
        "exchange": {"id": "hierarchical", "ranks_per_node": 2},
    },
    "over_auto": _topk(exchange={"id": "auto", "ranks_per_node": 1}),
    "over_selecting_over_the_group": _topk(exchange="allgather", select_over="group"),
}
"""Options of ``Compression.build``."""
for _options in EXCHANGES.values():
    _options["on_nonfinite"] = "raise"
ONLY_GROUPED = ("over_selecting_over_the_group",)
"""Cases that TensorFlow runs only with groups; in PyTorch, tensors share a bucket anyway."""
GROUPED = ("over_allgather", "over_shared_index", "over_oktopk", "over_hierarchical", *ONLY_GROUPED)
"""Cases that also run with groups: all kinds of collectives, one phase and several."""


def gradients_of(rank, step):
    """Return a rank's float64 gradients: multiples of 1/8, which even bfloat16 represents
    exactly."""
    draw = np.random.RandomState(1000 * step + rank)
    return [np.clip(np.round(8 * draw.laplace(size=shape)), -120, 120) / 8 for shape in SHAPES]


def uneven_gradients_of(rank, step):
    """Return gradients of whole numbers. 0, 1, k or 2k of them are not zero, and the indices of
    different ranks overlap."""
    draw = np.random.RandomState(1000 * step + rank)
    gradients = []
    for shape in SHAPES:
        numel = int(np.prod(shape))
        count = (0, 1, numel // 10, 2 * (numel // 10))[(rank + step) % 4]
        flat = np.zeros(numel, np.float32)
        flat[draw.permutation(numel)[:count]] = draw.randint(1, 10, count) * draw.choice(
            [-1, 1], count
        )
        gradients.append(flat.reshape(shape))
    return gradients


def broken_gradients_of(rank, size, step):
    gradients = uneven_gradients_of(rank, step)
    if step == BEYOND_STEP:
        gradients[1][:] = 1.1 * float(np.finfo(np.float32).max) / size
    elif rank == size - 1:
        gradients[1].flat[5] = np.nan
    return gradients


def digest_of(arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def compressor_of(compression, case, params, **options):
    if case in METHODS:
        return getattr(compression, case)(params, **METHODS[case], **options)
    return compression.build(params, **{**BUILT, **EXCHANGES}[case], **options)


def simulated(compressor, draw, rank, size, *, steps, buckets, average):
    """Return the results and residuals that a rank should have. The numpy engine computes them with
    the compressor's configuration. Every rank simulates all ranks by threads, so it does not wait
    for others."""
    specs = compressor.step.specs

    def script(collective):
        session = Session(
            compressor.configuration, specs, collective, average=average, buckets=buckets
        )
        applied = []
        for step in steps:
            drawn = [each.astype(np.float32) for each in draw(collective.rank, step)]
            reduced = session.reduce({spec.key: each for spec, each in zip(specs, drawn)})
            applied += [reduced[spec.key] for spec in specs]
        states = session.step.transactions.settle_all()
        kept = [states[i].memory.arrays().get("residual", np.zeros(0)) for i in range(len(specs))]
        return {"applied": applied, "kept": kept}

    outcomes = LocalWorld(size, LIMIT_S).run(script)
    assert len({digest_of(outcome["applied"]) for outcome in outcomes}) == 1
    return {what: digest_of(arrays) for what, arrays in outcomes[rank].items()}


def check_bits(compressor, applied, expected):
    """Check that a rank has applied and kept the bits of the numpy engine. Return the stats, and
    close the compressor."""
    stats, tensors = compressor.stats(), compressor.state_dict()["tensors"]
    keys = [spec.key for spec in compressor.step.specs]
    kept = [np.asarray(tensors[key]["arrays"].get("residual", np.zeros(0))) for key in keys]
    compressor.close()
    assert (applied, digest_of(kept)) == (expected["applied"], expected["kept"])
    return stats


def check_method(compressor, applied, expected):
    stats = check_bits(compressor, applied, expected)
    assert stats["sparse_steps"] == STEPS * len(SHAPES), stats
    assert stats["entries_sent"] > 0, stats
