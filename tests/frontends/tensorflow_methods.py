"""Worker, under mpirun: every method through a tape, against the numpy core over mpi4py on the same
gradients."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, run_cases
from _integer_gradients import SHAPES, gradients_of
from _method_cases import BUILT, METHODS, OVER_GROUPS, STEPS, compressor_of, found, session_beside
from _tensorflow_cases import (
    Compression,
    begin,
    digest_of,
    end,
    hvd,
    linear_loss,
    meet,
    tape_gradients,
    variables_of,
)


def same_as_the_core(name: str) -> dict[str, Any]:
    variables = variables_of(SHAPES, prefix=name)
    compressor = compressor_of(Compression, name, variables, name=name, **SPARSE_ONLY)
    compressor.resolve()
    specs = compressor.step.specs
    # One of Horovod's groups, which is what PyTorch makes of so few entries by itself.
    groups = {"groups": 1} if name in OVER_GROUPS else {}
    session = session_beside(compressor, buckets=[(0, 1, 2)] if groups else None)
    run = tf.function(
        lambda gradients: tape_gradients(
            linear_loss(variables, gradients), variables, compressor, **groups
        )
    )
    differences, applied = 0, []
    for step in range(STEPS):
        gradients = [gradient.astype(np.float32) for gradient in gradients_of(hvd.rank(), step)]
        reduced = session.reduce({spec.key: gradient for spec, gradient in zip(specs, gradients)})
        results = [
            np.asarray(tensor) for tensor in run([tf.constant(gradient) for gradient in gradients])
        ]
        applied += results
        differences += sum(
            int((reduced[spec.key] != result).sum()) for spec, result in zip(specs, results)
        )
    return found(compressor, differences, digest_of(applied))


if __name__ == "__main__":
    begin(int(sys.argv[1]))
    cases = Cases(dict.fromkeys([*METHODS, *BUILT], same_as_the_core))
    run_cases(cases, hvd.rank(), meet)
    end()
