"""What gradients on a device are tried with besides the named methods.  Without any framework."""

from __future__ import annotations

from typing import Any

_TOPK = {"id": "topk", "density": 0.1}
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

OPTIONS: dict[str, Any] = {
    "rollback": False,
    "select_over": "group",
    "check_replicas_every": 2,
    "telemetry": True,
    "engine": "numpy",
    "max_gathered_bytes": 400,
    "on_nonfinite": "raise",
}
"""Choices of common options beside topk."""
