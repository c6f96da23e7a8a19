"""Worker: the memory of a compressor, as the kernel counts this process's; Linux.  Argument: the
framework."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _framework import NAME, fw

SHAPE = (1024, 4096)
"""One tensor, so large that all else is small beside it."""
GRADIENT_BYTES = 4 * SHAPE[0] * SHAPE[1]
DENSITY = 1e-5
"""41 entries: next to nothing."""
STEPS, MEASURED = 8, 3
"""The last so many steps are looked at, when thresholds have settled."""
HALF = {"memory": {"id": "error_feedback", "residual": "bfloat16"}, "rollback": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "topk_without_rollback": ("topk", {"rollback": False}),
    "topk_with_rollback": ("topk", {"rollback": True}),
    "ldte_bs_without_rollback": ("ldte_bs", {"rollback": False}),
    "topk_with_half_a_residual": ("topk", HALF),
}
"""Selector and options."""


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}")


def peak_of(work: Callable[[], Any]) -> int:
    """How much more memory was resident at some moment of ``work`` than before it."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    work()
    return status("VmHWM") - before


def measure(
    name: str, selector: str, options: dict[str, Any], shape: Any = SHAPE, **layout: bool
) -> dict[str, float]:
    """In gradients: what is kept between steps, and the most that a step needs besides."""
    gc.collect()
    params, step_with, settle = (of_torch if NAME == "torch" else of_tensorflow)(shape, **layout)
    for _ in range(2):  # the framework's own copies of what it was given are made, and gone
        settle()
    base = status("VmRSS")
    selection = {"id": selector, "density": DENSITY}
    compressor = fw.Compression.build(
        params, selector=selection, allow_dense=False, name=name, **options
    )
    step, kept, peaks = step_with(compressor), [], []
    for _ in range(STEPS):
        settle()
        kept.append(status("VmRSS") - base)
        peaks.append(peak_of(step))
    assert compressor.stats()["sparse_steps"] > 0
    compressor.close()
    last = slice(STEPS - MEASURED, None)
    return {
        "kept": max(kept[last]) / GRADIENT_BYTES,
        "needed": max(peaks[last]) / GRADIENT_BYTES,
    }


def of_torch(shape: tuple[int, int], is_contiguous: bool = True) -> tuple[Any, Any, Any]:
    """Parameters, what makes a step of a compressor, and what makes the next gradient."""
    import torch

    class Give(torch.autograd.Function):
        """A loss whose gradient is a given tensor, and that makes no other."""

        @staticmethod
        def forward(ctx: Any, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
            ctx.gradient = gradient
            return parameter.new_zeros(())

        @staticmethod
        def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
            return ctx.gradient, None

    matrix = torch.ones(shape) if is_contiguous else torch.ones(shape[::-1]).t()
    parameter, gradient = torch.nn.Parameter(matrix), torch.ones_like(matrix)
    parameter.grad = torch.ones_like(matrix)

    def step_with(compressor: Any) -> Callable[[], None]:
        optimizer = fw.optimizer_without_motion({"p": parameter}, compressor)

        def step() -> None:
            Give.apply(parameter, gradient).backward()
            optimizer.step()

        return step

    def settle() -> None:
        gradient.normal_()
        parameter.grad.zero_()  # writes the pages of a reduced gradient that nobody has written

    return [("p", parameter)], step_with, settle


def of_tensorflow(shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    variable, gradient = tf.Variable(tf.ones(shape)), tf.Variable(tf.ones(shape))

    @tf.custom_gradient
    def loss(_: tf.Tensor) -> Any:
        """Its gradient is a given variable's own memory."""
        return tf.zeros([]), lambda upstream: gradient.value()

    def step_with(compressor: Any) -> Any:
        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                value = loss(variable.value())
            distributed = fw.hvd.DistributedGradientTape(tape, compression=compressor)
            return distributed.gradient(value, [variable])[0][0, 0]

        return step

    return [variable], step_with, lambda: gradient.assign(tf.random.normal(shape))


if __name__ == "__main__":
    fw.begin(0)
    # What Horovod and the framework take at first is nobody's fault: the first case is not looked
    # at.
    warm_up = partial(measure, selector="topk", options={}, shape=(64, 128))
    cases: dict[str, Any] = {"warm_up": warm_up}
    for case, (selector, options) in CASES.items():
        cases[case] = partial(measure, selector=selector, options=options)
    if NAME == "torch":
        cases["not_contiguous"] = partial(cases["topk_without_rollback"], is_contiguous=False)
    fw.run(cases)
