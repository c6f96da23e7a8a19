"""Every exchange, with counts as uneven as they come and a step that fails.  Without any framework.

The oracle is the numpy core in a world of threads, run on every rank for itself: it waits for no
other rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

SHAPES = ((30, 20), (9, 2), (6, 5, 4))
STEPS = 8
NAN_STEP, BEYOND_STEP = FAILING_STEPS = 3, 5
"""One rank has NaN; all have numbers, whose sum is none."""
DENSITY = 0.1
IN_A_GROUP = "_in_a_group"
"""What a case's name ends with where Horovod's groups hand all tensors over together."""
_TOPK = {"id": "topk", "density": DENSITY}
_ALL_ABOVE = {"id": "fixed_threshold", "threshold": 0.5, "max_density": 1.0}

EXCHANGES: dict[str, dict[str, Any]] = {
    "allgather": {"selector": _ALL_ABOVE, "exchange": "allgather"},
    "shared_index": {"selector": _TOPK, "exchange": "shared_index"},
    "shared_index_by_threshold": {"selector": _ALL_ABOVE, "exchange": "shared_index"},
    "shared_draws": {
        "selector": {"id": "random_k", "density": DENSITY, "shared_seed": True},
        "exchange": "shared_index",
    },
    "shared_chunks": {
        "selector": {"id": "chunked", "density": 0.2, "chunk_length": 6},
        "exchange": "shared_index",
    },
    "gtopk": {"selector": _TOPK, "exchange": "gtopk"},
    "gtopk_as_published": {"selector": _TOPK, "exchange": {"id": "gtopk", "conserving": False}},
    "oktopk": {"selector": _TOPK, "exchange": {"id": "oktopk", "period": 2}},
    "oktopk_in_regions": {"selector": _TOPK, "exchange": {"id": "oktopk", "least_entries": 1}},
    "hierarchical": {
        "selector": _ALL_ABOVE,
        "exchange": {"id": "hierarchical", "ranks_per_node": 2},
    },
    "auto": {"selector": _TOPK, "exchange": {"id": "auto", "ranks_per_node": 1}},
    "selecting_over_the_group": {
        "selector": _TOPK,
        "exchange": "allgather",
        "select_over": "group",
    },
}
for _options in EXCHANGES.values():
    _options["on_nonfinite"] = "raise"
GOING_ON = ("shared_draws_and_nan", "shared_chunks_and_nan", "gtopk_and_nan", "oktopk_and_nan")
"""Those in which NaN is no error."""
EXCHANGES |= {
    name: {**EXCHANGES[name.removesuffix("_and_nan")], "on_nonfinite": "propagate"}
    for name in GOING_ON
}
"""Options of ``Compression.build``."""
ONLY_GROUPED = ("selecting_over_the_group",)
"""Those that TensorFlow cannot run otherwise; in PyTorch tensors are together anyway."""
GROUPED = ("allgather", "shared_index", "oktopk", "hierarchical", *ONLY_GROUPED)
"""Those that also run so: every kind of collective, in exchanges of one phase and of several."""


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    """Whole numbers; 0, 1, k and 2k of them are not zero, at places that overlap between ranks."""
    draw = np.random.RandomState(1000 * step + rank)
    gradients = []
    for shape in SHAPES:
        numel = int(np.prod(shape))
        count = (0, 1, int(numel * DENSITY), 2 * int(numel * DENSITY))[(rank + step) % 4]
        flat = np.zeros(numel, np.float32)
        flat[draw.permutation(numel)[:count]] = draw.randint(1, 10, count) * draw.choice(
            [-1, 1], count
        )
        gradients.append(flat.reshape(shape))
    return gradients


def broken_gradients_of(rank: int, size: int, step: int) -> list[np.ndarray]:
    """In the second tensor NaN on the last rank, or numbers whose sum is beyond float32."""
    gradients = gradients_of(rank, step)
    if step == BEYOND_STEP:
        gradients[1][:] = 1.1 * float(np.finfo(np.float32).max) / size
    elif rank == size - 1:
        gradients[1][2, 1] = np.nan
    return gradients


def spoilt(arrays: Sequence[np.ndarray]) -> str:
    """Say which tensors are all NaN; any other NaN or Inf is said to be there."""
    is_nan = [position for position, array in enumerate(arrays) if np.isnan(array).all()]
    others = [position for position, array in enumerate(arrays) if not np.isfinite(array).all()]
    return f"NaN in {is_nan}" if is_nan == others else f"NaN in {is_nan}, and some in {others}"


def digest_of(arrays: Sequence[np.ndarray]) -> str:
    """The bits of arrays in few letters."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def simulate(
    configuration: Configuration,
    specs: Sequence[TensorSpec],
    buckets: Any,
    world_size: int,
    rank: int,
) -> dict[str, Any]:
    """What a rank is to apply and to keep, the failing step left out, and what all ranks lose."""

    def script(collective: Any) -> dict[str, Any]:
        session = Session(configuration, specs, collective, average=False, buckets=buckets)
        applied, given = [], np.zeros(sum(spec.numel for spec in specs))
        for step in range(STEPS):
            if step in FAILING_STEPS:
                continue
            gradients = dict(zip([spec.key for spec in specs], gradients_of(collective.rank, step)))
            reduced = session.reduce(gradients)
            applied.append([reduced[spec.key] for spec in specs])
            given += np.concatenate([gradients[spec.key].reshape(-1) for spec in specs])
        states = session.step.transactions.settle_all()
        kept = [states[position].memory.arrays()["residual"] for position in range(len(specs))]
        return {"applied": applied, "kept": kept, "given": given}

    outcomes = LocalWorld(world_size, 60.0).run(script)
    mine = outcomes[rank]
    total = sum(
        np.concatenate([a.reshape(-1) for a in step]).astype(np.float64) for step in mine["applied"]
    )
    left = sum(
        o["given"].sum() - sum(float(k.sum(dtype=np.float64)) for k in o["kept"]) for o in outcomes
    )
    return {
        "applied": digest_of([array for step in mine["applied"] for array in step]),
        "kept": digest_of(mine["kept"]),
        "lost": float(left - total.sum()),
    }
