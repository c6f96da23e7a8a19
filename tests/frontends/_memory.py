"""Memory of this process, as the kernel counts it; Linux."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPE = (1024, 4096)
"""One tensor, so large that all else is small beside it."""
GRADIENT_BYTES = 4 * SHAPE[0] * SHAPE[1]
DENSITY = 1e-5
"""41 entries: next to nothing."""
STEPS = 8
MEASURED = 3
"""The last so many steps, when thresholds have settled."""


def resident_bytes() -> int:
    return _status("VmRSS")


def peak_of(work: Callable[[], Any]) -> int:
    """How much more memory was resident at some moment of ``work`` than before it."""
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}")


def measure(settle: Callable[[], Any], step: Callable[[], Any], base: int) -> dict[str, float]:
    """In gradients: what a compressor keeps between steps, and the most that one of its steps needs
    besides."""
    peaks, kept = [], []
    for _ in range(STEPS):
        settle()
        kept.append(resident_bytes() - base)
        peaks.append(peak_of(step))
    last = slice(STEPS - MEASURED, None)
    return {
        "kept": max(kept[last]) / GRADIENT_BYTES,
        "needed": max(peaks[last]) / GRADIENT_BYTES,
        "needed_at_first": max(peaks[1:]) / GRADIENT_BYTES,
    }


HALF: dict[str, Any] = {
    "memory": {"id": "error_feedback", "residual": "bfloat16"},
    "rollback": False,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "topk_without_rollback": ("topk", {"rollback": False}),
    "topk_with_rollback": ("topk", {"rollback": True}),
    "ldte_bs_without_rollback": ("ldte_bs", {"rollback": False}),
    "topk_with_half_a_residual": ("topk", HALF),
}
"""Selector and options."""


def build(compression: Any, params: Any, selector: str, options: dict[str, Any], name: str) -> Any:
    """The compressor of a case."""
    selection = {"id": selector, "density": DENSITY}
    return compression.build(params, selector=selection, allow_dense=False, name=name, **options)
