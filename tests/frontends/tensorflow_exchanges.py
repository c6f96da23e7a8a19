"""Worker: every exchange in a TensorFlow graph, with a step that fails, against the numpy core in a
world of threads."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, run_cases
from _exchange_cases import (
    EXCHANGES,
    FAILING_STEP,
    GROUPED,
    IN_A_GROUP,
    ONLY_GROUPED,
    SHAPES,
    STEPS,
    digest_of,
    gradients_of,
    simulate,
)
from _tensorflow_cases import (
    Compression,
    begin,
    end,
    hvd,
    linear_loss,
    meet,
    outcome_of,
    tape_gradients,
    variables_of,
)
from _tensorflow_mismatches import is_usable, last_rank


def same_as_in_threads(name: str, groups: int | None = None) -> dict[str, Any]:
    exchange = name.removesuffix(IN_A_GROUP)
    variables = variables_of(SHAPES, prefix=name)
    compressor = Compression.build(variables, name=name, **EXCHANGES[exchange], **SPARSE_ONLY)
    compressor.resolve()
    options = {"op": hvd.Sum, "groups": groups}
    run = tf.function(
        lambda gradients: tape_gradients(
            linear_loss(variables, gradients), variables, compressor, **options
        )
    )
    applied, failed = [], {}
    for step in range(STEPS):
        gradients = gradients_of(hvd.rank(), step)
        if step != FAILING_STEP:
            applied += [
                np.asarray(tensor)
                for tensor in run([tf.constant(gradient) for gradient in gradients])
            ]
            continue
        if last_rank():
            gradients[1][2, 1] = np.nan
        failed = outcome_of(lambda given=gradients: run([tf.constant(g) for g in given]))  # type: ignore[misc]
    tensors = compressor.state_dict()["tensors"]
    kept = [tensors[variable.name]["arrays"]["residual"] for variable in variables]
    buckets = compressor.step.buckets if groups is None else [tuple(range(len(SHAPES)))]
    expected = simulate(
        compressor.configuration, compressor.step.specs, buckets, hvd.size(), hvd.rank()
    )
    phases = compressor.step.exchange.phases(compressor.configuration.selector, hvd.size())
    compressor.close()
    return {
        "applied": digest_of(applied),
        "kept": digest_of(kept),
        "expected": expected,
        "raised": f"{failed['raised']} {failed['words']}",
        "phases": len(phases),
        "is_usable": is_usable(name),
    }


if __name__ == "__main__":
    begin(int(sys.argv[1]))
    together = {f"{name}{IN_A_GROUP}": partial(same_as_in_threads, groups=1) for name in GROUPED}
    alone = [name for name in EXCHANGES if name not in ONLY_GROUPED]
    run_cases({**dict.fromkeys(alone, same_as_in_threads), **together}, hvd.rank(), meet)
    end()
