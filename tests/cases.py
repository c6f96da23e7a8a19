"""Every registered part, with options for the conformance suite. A new part needs one line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from installed import is_installed

from hvd_sparse.registry import Registry


@dataclass(frozen=True)
class Case:
    """A part and its options. Selectors with a density get it from the tests."""

    id: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, registry: Registry, **options: Any) -> Any:
        if "density" in options and "density" not in {
            f.name for f in fields(registry.get(self.id))
        }:
            del options["density"]
        return registry.create(self.id, **self.options, **options)

    def __str__(self) -> str:
        return "-".join([self.id, *(f"{name}={value}" for name, value in self.options.items())])


SELECTORS = (
    Case("ldte"),
    Case("ldte_bs"),
    Case("ldte_bs", {"search": "bisection"}),
    Case("ldte_bs", {"search": "bisection", "warm_start": False}),
    Case("ldte_bs", {"tolerance": (0.95, 1.05), "max_passes": 20}),
    Case("topk"),
    Case("radix_select"),
    Case("gaussian_k"),
    Case("gaussian_k", {"variant": "improved"}),
    Case("gaussian_k", {"variant": "paper"}),
    Case("dgc_sampled"),
    Case("dgc_sampled", {"sample_density": 0.05, "max_rounds": 2}),
    Case("redsync_trimmed"),
    Case("redsync_search"),
    Case("redsync_search", {"reuse_steps": 0, "max_passes": 4}),
    Case("redsync_signs"),
    Case("redsync_signs", {"search": True}),
    Case("adacomp"),
    Case("adacomp", {"bin_length": 7}),
    Case("sidco"),
    Case("sidco", {"distribution": "generalised_pareto", "stages": 2}),
    Case("sidco", {"distribution": "gamma", "stages": 3}),
    Case("random_k"),
    Case("random_k", {"shared_seed": True}),
    Case("fixed_threshold", {"threshold": 0.5}),
    Case("fixed_threshold", {"threshold": 0.5, "max_density": 0.01, "signs_only": True}),
    Case("chunked"),
    Case("chunked", {"chunk_length": 3}),
    Case("stc"),
    Case("sbc"),
    Case("ef_sign"),
    Case("sign_vote"),
    Case("chunk_max"),
    Case("reused_threshold"),
    Case("terngrad"),
    Case("terngrad", {"clip": None}),
)
MEMORIES = (
    Case("error_feedback"),
    Case("error_feedback", {"residual": "bfloat16"}),
    Case("error_feedback", {"residual": "float16"}),
    Case("momentum_correction"),
    Case(
        "momentum_correction",
        {"nesterov": True, "masking": False, "weight_decay": 0.01, "clip_norm": 1.0},
    ),
    Case("momentum_correction", {"momentum": 0.0}),
    Case("momentum_feedback"),
    Case(
        "momentum_feedback",
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.01, "clip_norm": 1.0},
    ),
    Case("adam_correction"),
    Case("adam_correction", {"beta1": 0.0, "beta2": 0.9, "epsilon": 0.1, "clip_norm": 1.0}),
    Case("muon_correction"),
    Case("muon_correction", {"momentum": 0.0, "nesterov": False, "ns_steps": 2, "clip_norm": 1.0}),
    Case("low_pass", {"beta": 0.25}),
    Case("low_pass", {"beta": 1.0}),
    Case("none"),
    Case("majority_vote"),
)
CODECS = (
    Case("index_value"),
    Case("block16"),
    Case("block16", {"values": "float32"}),
    Case("block16", {"values": "float16"}),
    Case("block16", {"values": "int8"}),
    Case("golomb"),
    Case("golomb", {"values": "float32"}),
    Case("block16", {"values": "int4"}),
    Case("block16", {"values": "int2"}),
    Case("golomb", {"values": "int2"}),
    Case("chunk12"),
    Case("chunk12", {"values": "int4"}),
    Case("chunk12", {"values": "float32"}),
    Case("run16"),
    Case("bitmap"),
    Case("bitmap", {"values": "bfloat16"}),
    Case("dense"),
    Case("dense", {"values": "int8"}),
    Case("ternary"),
    Case("sign_index"),
    Case("sign_mean"),
    Case("one_sign"),
    Case("one_bit"),
    Case("two_bit"),
    Case("auto"),
    Case("auto", {"values": "float32", "density": 0.5}),
    Case("auto", {"values": "float32", "density": 1.0}),
)
EXCHANGES = (
    Case("allgather"),
    Case("shared_index"),
    Case("gtopk"),
    Case("gtopk", {"conserving": False}),
    Case("oktopk"),
    Case("oktopk", {"least_entries": 1, "period": 1}),
    Case("oktopk", {"least_entries": 2, "period": 2, "slack": 1.0}),
    Case("hierarchical", {"ranks_per_node": 2}),
    Case("hierarchical", {"ranks_per_node": 3}),
    Case("auto"),
)
SCHEDULES = (
    Case("constant", {"value": 0.25}),
    Case("dense_warmup", {"value": 0.01, "warmup_steps": 3}),
    Case("exponential_warmup", {"value": 0.001, "stage_steps": 10}),
    Case("exponential_warmup", {"value": 0.001, "stage_steps": 10, "formula": "code"}),
    Case("learning_rate", {"value": 0.01, "steps": 10}),
    Case("learning_rate", {"value": 0.01}),
    Case("piecewise", {"boundaries": (2, 5), "densities": (1.0, 0.1, 0.01)}),
)
EVERY_ENGINE = (
    Case("numpy"),
    Case("numba"),
    Case("numba", {"threads": 3}),
    Case("torch"),
    Case("triton"),
)
INSTALLED_ENGINES = tuple(
    case for case in EVERY_ENGINE if case.id == "numpy" or is_installed(case.id)
)
"""Engines whose packages are installed. The end of every test run lists the others."""
ENGINES = tuple(case for case in INSTALLED_ENGINES if case.id != "triton")
"""Installed engines that run without a GPU; ``tests/devices`` tests the others."""

WRITERS = (
    Case("jsonl", {"path": "runs/{rank}.jsonl", "all_ranks": True}),
    Case("mlflow", {"experiment": "x"}),
    Case("tensorboard", {"path": "runs/x"}),
    Case("wandb", {"project": "x", "mode": "offline"}),
)
