"""Worker: measures a compressor's memory by Linux' process data. Argument: the framework."""

import gc
from functools import partial
from pathlib import Path

from _framework import NAME, fw

SHAPE = (1024, 4096)
"""Shape of the only tensor, which is so large that all other memory is small in comparison."""
GRADIENT_BYTES = 4 * SHAPE[0] * SHAPE[1]
DENSITY = 1e-5
"""Density of 41 sent entries, whose memory is negligible."""
STEPS, MEASURED = 8, 3
"""Number of steps, and of the last steps, which are measured when thresholds hardly change."""
HALF = {"memory": {"id": "error_feedback", "residual": "bfloat16"}, "rollback": False}
CASES = {
    "topk_without_rollback": ("topk", {"rollback": False}, 1.0),
    "topk_with_rollback": ("topk", {"rollback": True}, 2.0),
    "ldte_bs_without_rollback": ("ldte_bs", {"rollback": False}, 1.0),
    "topk_with_half_a_residual": ("topk", HALF, 0.5),
}
"""Selectors and options of the cases, and what is kept between steps, in units of the gradient."""
WORKING = 5.0
"""A residual of 16 bits is widened, added to the gradient and rounded again in arrays of float32
that last for one tensor."""
REDUCED = 0.0 if NAME == "torch" else 1.0
"""PyTorch's reduced gradient is in the memory of the gradient; TensorFlow's tensors are never
written to, so it is another."""
SLACK = 0.2
"""Gradients: 3.4 MB of 16.8; half a copy would be found."""


def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}")


def peak_of(work):
    """Return by how many bytes the peak of resident memory during ``work`` exceeds the start."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    work()
    return status("VmHWM") - before


def measure(name, selector, options, shape=SHAPE, **layout):
    """Return the memory that is kept between steps, and the additional peak of a step, both in
    units of the gradient's size."""
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
    return max(kept[last]) / GRADIENT_BYTES, max(peaks[last]) / GRADIENT_BYTES


def check(name, selector, options, keeps, **layout):
    kept, needed = measure(name, selector, options, **layout)
    if layout:
        assert abs(needed - 2.0) <= SLACK, f"a copy would not be seen: {needed}"
        return
    assert abs(kept - keeps) <= SLACK, kept
    assert needed <= (WORKING if options is HALF else REDUCED) + SLACK, needed


def of_torch(shape, is_contiguous=True):
    """Return the parameters, a function that returns a compressor's step, and a function that
    prepares the next gradient."""
    import torch

    class Give(torch.autograd.Function):
        """A loss whose gradient is a given tensor. Its backward pass allocates no memory."""

        @staticmethod
        def forward(ctx, parameter, gradient):
            ctx.gradient = gradient
            return parameter.new_zeros(())

        @staticmethod
        def backward(ctx, *_):
            return ctx.gradient, None

    matrix = torch.ones(shape) if is_contiguous else torch.ones(shape[::-1]).t()
    parameter, gradient = torch.nn.Parameter(matrix), torch.ones_like(matrix)
    parameter.grad = torch.ones_like(matrix)

    def step_with(compressor):
        optimizer = fw.optimizer_without_motion({"p": parameter}, compressor)

        def step():
            Give.apply(parameter, gradient).backward()
            optimizer.step()

        return step

    def settle():
        gradient.normal_()
        parameter.grad.zero_()  # writes the pages of a reduced gradient that nobody has written

    return [("p", parameter)], step_with, settle


def of_tensorflow(shape):
    import tensorflow as tf

    variable, gradient = tf.Variable(tf.ones(shape)), tf.Variable(tf.ones(shape))

    @tf.custom_gradient
    def loss(_):
        """Return a loss whose gradient is the memory of a given variable."""
        return tf.zeros([]), lambda upstream: gradient.value()

    def step_with(compressor):
        @tf.function
        def step():
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
    cases = {"warm_up": warm_up}
    for case, (selector, options, keeps) in CASES.items():
        cases[case] = partial(check, selector=selector, options=options, keeps=keeps)
    if NAME == "torch":
        cases["not_contiguous"] = partial(cases["topk_without_rollback"], is_contiguous=False)
    fw.run(cases)
