"""Every named method, with what it needs to run, what gradients on a device are tried with besides,
and gradients that tests know without being told.  Without any framework: pytest reads it too."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 6
SHAPES = ((30, 20), (9,), (6, 5, 4))
METHODS: dict[str, dict[str, Any]] = {
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
"""Options by method."""
OVER_GROUPS = ("mgs",)
"""Methods that select from all tensors of a group at once."""

_TOPK = {"id": "topk", "density": 0.1}
BUILT: dict[str, dict[str, Any]] = {
    "chunks_of_each_rank": {"selector": {"id": "chunked", "density": 0.2, "chunk_length": 8}},
    "redsync_trimmed": {"selector": {"id": "redsync_trimmed", "density": 0.1}},
    "signs_in_turns": {
        "selector": {"id": "redsync_signs", "density": 0.1},
        "memory": "momentum_correction",
        "codec": "sign_index",
    },
    "fixed_threshold": {"selector": {"id": "fixed_threshold", "threshold": 1.5}},
    "low_pass": {"selector": _TOPK, "memory": {"id": "low_pass", "beta": 0.5}},
    "no_memory": {"selector": _TOPK, "memory": "none"},
    "warm_up": {
        "selector": _TOPK,
        "schedule": {"id": "exponential_warmup", "value": 0.05, "stage_steps": 2},
    },
    "density_by_tensor": {
        "selector": {"id": "topk", "density": {"*": 0.05, "*2*": 0.2}},
        "schedule": {"id": "exponential_warmup", "stage_steps": 2},
    },
    "chunk_wise_leader": {
        "selector": {"id": "chunk_max", "density": 0.1},
        "exchange": "shared_index",
    },
    "gtopk_as_published": {"selector": _TOPK, "exchange": {"id": "gtopk", "conserving": False}},
    "oktopk_in_regions": {"selector": _TOPK, "exchange": {"id": "oktopk", "least_entries": 1}},
    "hierarchical": {"selector": _TOPK, "exchange": {"id": "hierarchical", "ranks_per_node": 2}},
    "every_rank_a_node": {
        "selector": _TOPK,
        "exchange": {"id": "hierarchical", "ranks_per_node": 1},
    },
    "auto": {"selector": _TOPK, "exchange": "auto"},
    "piecewise": {
        "selector": _TOPK,
        "schedule": {"id": "piecewise", "boundaries": [3], "densities": [0.2, 0.1]},
    },
    **{
        f"codec_{number}": {"selector": _TOPK, "codec": codec}
        for number, codec in enumerate(
            [
                "block16",
                {"id": "block16", "values": "float16"},
                "golomb",
                {"id": "golomb", "values": "int8"},
                "run16",
                "bitmap",
                "dense",
                {"id": "auto", "values": "float32"},
            ]
        )
    },
}
"""Options of ``Compression.build`` for the parts that no named method uses."""


STAYING: dict[str, dict[str, Any]] = {
    "dgc_sampled": {"selector": {"id": "dgc_sampled", "density": 0.1}},
    "random_of_each_rank": {"selector": {"id": "random_k", "density": 0.1}},
    "reused_threshold": {"selector": {"id": "reused_threshold", "density": 0.1}},
    "chunk12": {"selector": _TOPK, "codec": "chunk12"},
    "dense_at_first": {
        "selector": _TOPK,
        "schedule": {"id": "dense_warmup", "value": 0.1, "warmup_steps": 2},
    },
    "momentum": {"selector": _TOPK, "memory": "momentum_correction"},
    "momentum_feedback": {"selector": _TOPK, "memory": "momentum_feedback"},
    "momentum_and_decay": {
        "selector": {"id": "ldte_bs", "density": 0.1},
        "memory": {"id": "momentum_correction", "nesterov": True, "weight_decay": 0.1},
        "codec": {"id": "golomb", "values": "int8"},
    },
    "adam": {"selector": _TOPK, "memory": "adam_correction"},
    "adam_and_decay": {
        "selector": _TOPK,
        "memory": {"id": "adam_correction", "weight_decay": 0.1},
    },
    "muon": {"selector": _TOPK, "memory": "muon_correction"},
    "constant": {"selector": _TOPK, "schedule": {"id": "constant", "value": 0.1}},
}
"""Options of ``Compression.build`` for parts that no method's case leaves on the device."""

OPTIONS_ON_DEVICES: dict[str, Any] = {
    "rollback": False,
    "select_over": "group",
    "check_replicas_every": 2,
    "telemetry": True,
    "engine": "numpy",
    "max_gathered_bytes": 400,
    "on_nonfinite": "raise",
}
"""Choices of common options beside topk."""


def gradients_of(rank: int, step: int) -> list[np.ndarray]:
    """A rank's float64 gradients of a step, in eighths, which even bfloat16 holds exactly."""
    draw = np.random.RandomState(1000 * step + rank)
    return [np.clip(np.round(8 * draw.laplace(size=shape)), -120, 120) / 8 for shape in SHAPES]


def compressor_of(compression: Any, case: str, params: Any, **options: Any) -> Any:
    """A case's compressor, from a frontend's ``Compression``."""
    if case in BUILT:
        return compression.build(params, **BUILT[case], **options)
    return getattr(compression, case)(params, **METHODS[case], **options)


def session_beside(
    compressor: Any, collective: Any = None, buckets: list[tuple[int, ...]] | None = None
) -> Any:
    """The numpy core, with the parts and buckets of a frontend's compressor; over mpi4py."""
    from hvd_sparse.step.session import Session

    if collective is None:
        # Not at the top: MPI is Horovod's to initialize, and pytest has none.
        from mpi_collective import MpiCollective

        collective = MpiCollective()
    step = compressor.step
    return Session(
        compressor.configuration,
        step.specs,
        collective,
        buckets=buckets or step.buckets,
        kernels=step.pipeline.kernels,
    )


def found(compressor: Any, differences: int, applied: str) -> dict[str, Any]:
    """What a case reports, once its compressor is closed."""
    stats = compressor.stats()
    compressor.close()
    return {
        "differences": differences,
        "applied": applied,
        "entries_sent": stats["entries_sent"],
        "sparse_steps": stats["sparse_steps"],
    }
