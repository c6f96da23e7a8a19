"""Every named method, with what it needs to run.  Without any framework: pytest reads it too."""

from __future__ import annotations

from typing import Any

STEPS = 6
METHODS: dict[str, dict[str, Any]] = {
    "adacomp": {"bin_length": 20},
    "dgc": {"density": 0.1},
    "ef_sign": {},
    "gaussian_k": {"density": 0.1},
    "ldte": {"density": 0.1},
    "ldte_bs": {"density": 0.1},
    "radix_select": {"density": 0.1},
    "random_k": {"density": 0.1, "shared_seed": True},
    "redsync": {"density": 0.1, "search": True},
    "sidco": {"density": 0.1, "distribution": "gamma", "stages": 2},
    "stc": {"density": 0.1},
    "strom": {"threshold": 1.5},
    "terngrad": {},
    "topk": {"density": 0.1},
}
"""Options by method."""
