"""Worker: something happens to the last rank in mid-training.  Argument: what."""

from __future__ import annotations

import os
import sys

import tensorflow as tf
from _hangs import FAULTS, PASSING, TIMEOUT_S, train, train_on
from _tensorflow_cases import begin, hvd, meet, variables_of
from _tensorflow_mismatches import SHAPES, compress, last_rank, step_of
from harness import report


def main() -> None:
    begin(2)
    variables = variables_of(SHAPES)
    compressor = compress(variables, name="hangs", timeout_s=TIMEOUT_S)
    step = tf.function(step_of(variables, compressor))
    meet()  # a rank that was still importing would meet the short limit
    report(hvd.rank(), "here")
    if sys.argv[1] in PASSING:
        train_on(step, last_rank(), PASSING[sys.argv[1]], hvd.allgather_object(os.getpid()))
        report(hvd.rank(), compressor.stats()["steps"])
    else:
        train(step, last_rank(), {**FAULTS, "joins": hvd.join}[sys.argv[1]])


if __name__ == "__main__":
    main()
