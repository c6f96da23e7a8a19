"""Faults in the middle of training: the step is taken back on every rank, and training can go
on."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import Cases
from _tensorflow_cases import Books, digest_of, hvd, outcome_of, residuals_of, variables_of
from _tensorflow_mismatches import compress, is_usable, last_rank
from harness import say, slow, wait_for

from hvd_sparse.selectors.topk import TopK

SHAPES = ((8, 9), (5, 7), (11,))
BROKEN = 1
"""The position of the tensor that fails."""
STEPS, FAILING_STEP = 6, 2
SPOILED = 3
"""The entry that becomes NaN."""
RECOVERIES = Cases()


@contextlib.contextmanager
def broken_selector() -> Iterator[None]:
    """On one rank, choosing one tensor's entries raises."""
    mended = TopK.aim

    def aim(self: TopK, numel: int, warm: Any, memo: Any) -> Any:
        if last_rank() and numel == int(np.prod(SHAPES[BROKEN])):
            raise RuntimeError("the selector broke")
        return mended(self, numel, warm, memo)

    TopK.aim = aim  # type: ignore[method-assign]
    try:
        yield
    finally:
        TopK.aim = mended  # type: ignore[method-assign]


def integers(rank: int, step: int) -> list[np.ndarray]:
    """A rank's gradients, whose sums are exact."""
    draw = np.random.RandomState(100 * rank + step)
    return [draw.randint(-9, 10, shape).astype("f4") for shape in SHAPES]


def recover(
    name: str, *, fault: str, rollback: bool, as_function: bool, groups: int | None = None
) -> dict[str, Any]:
    """Some steps, one of which fails: what is raised, what it changes, and what is lost at the
    end."""
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name, rollback=rollback, on_nonfinite="raise")

    books = Books(compressor, variables, as_function=as_function, op=hvd.Sum, groups=groups)
    result: dict[str, Any] = {}
    for number in range(STEPS):
        gradients = integers(hvd.rank(), number)
        if number == FAILING_STEP:
            before = digest_of(residuals_of(compressor).values())
            result = fail(books.run, gradients, fault)
            result["is_unchanged"] = digest_of(residuals_of(compressor).values()) == before
        else:
            books.take_step(gradients)
    missing, stats = books.missing(name), compressor.stats()
    compressor.close()
    steps = {key: counts["sparse_steps"] for key, counts in stats["tensors"].items()}
    lost = [unexplained(entries, i, rollback) for i, entries in enumerate(missing)]
    return {**result, "lost": max(lost), "steps": steps, "is_usable": is_usable(name)}


def unexplained(missing: np.ndarray, tensor: int, rollback: bool) -> float:
    """How far what is missing is from nothing.

    Without rollback, a rank keeps the failed step's gradient of a tensor that it had taken in, but
    for what is NaN: nearest to a sum of some ranks' gradients.
    """
    failed = [integers(rank, FAILING_STEP)[tensor] for rank in range(hvd.size())]
    if tensor == BROKEN:
        failed[-1].flat[SPOILED] = 0
    choices = itertools.product((0, 1), repeat=0 if rollback else len(failed))
    sums = [
        sum((gradient for kept, gradient in zip(choice, failed) if kept), np.zeros(SHAPES[tensor]))
        for choice in choices
    ]
    return min(float(np.abs(missing + extra).max()) for extra in sums)


def fail(run: Any, gradients: list[np.ndarray], fault: str) -> dict[str, Any]:
    """The step that fails on the last rank."""
    if fault == "nan" and last_rank():
        gradients[BROKEN].flat[SPOILED] = np.nan
    with broken_selector() if fault == "selector" else contextlib.nullcontext():
        return outcome_of(lambda: run([tf.constant(gradient) for gradient in gradients]))


for fault in ("selector", "nan"):
    for label, groups in (("a_group", 1), ("groups", 2)):
        case = partial(recover, fault=fault, rollback=True, as_function=True, groups=groups)
        RECOVERIES[f"{fault}_in_{label}"] = case
    for mode in ("eagerly", "in_a_function"):
        RECOVERIES[f"{fault}_{mode}"] = partial(
            recover, fault=fault, rollback=True, as_function=mode != "eagerly"
        )
RECOVERIES["nan_without_a_second_buffer"] = partial(
    recover, fault="nan", rollback=False, as_function=True
)


@RECOVERIES
def a_late_gradient_on_one_rank(name: str) -> dict[str, Any]:
    """When the first tensor fails, another's gradient is not there yet on one rank, and is on the
    others.

    That rank then does nothing until the others have their error, so that nothing it does later can
    help them out.
    """
    early, late = variables_of([(4, 3), (3, 5)])
    compressor = compress([early, late], name=name, on_nonfinite="raise")

    def linger(x: np.ndarray) -> np.ndarray:
        time.sleep(slow(1.0) if last_rank() else 0.0)
        return x

    @tf.function
    def step(value: Any) -> Any:
        with tf.GradientTape() as tape:
            delayed = tf.ensure_shape(
                tf.numpy_function(linger, [tf.ones(late.shape)], tf.float32), late.shape
            )
            loss = tf.reduce_sum(early * tf.fill(early.shape, value)) + tf.reduce_sum(
                late * delayed
            )
        return hvd.DistributedGradientTape(tape, compression=compressor).gradient(
            loss, [early, late]
        )

    good = tf.constant(1.0)
    step(good)
    outcome = outcome_of(lambda: step(tf.constant(np.nan) if hvd.rank() == 0 else good))
    if last_rank():
        for rank in range(hvd.size() - 1):
            wait_for(f"{name}.{rank}")
    else:
        say(f"{name}.{hvd.rank()}")
    again = outcome_of(lambda: step(good))
    compressor.close()
    return {**outcome, "next_step": again, "is_usable": is_usable(name)}
