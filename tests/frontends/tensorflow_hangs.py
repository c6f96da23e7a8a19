"""Worker: something happens to the last rank in mid-training.  Argument: what."""

from __future__ import annotations

import sys

import tensorflow as tf
from _hangs import FAULTS, TIMEOUT_S, train
from _tensorflow_cases import begin, hvd, variables_of
from _tensorflow_mismatches import SHAPES, compress, last_rank, step_of
from harness import report


def main() -> None:
    begin(2)
    variables = variables_of(SHAPES)
    compressor = compress(variables, name="hangs", timeout_s=TIMEOUT_S)
    fault = {**FAULTS, "joins": hvd.join}[sys.argv[1]]
    report(hvd.rank(), "here")
    train(tf.function(step_of(variables, compressor)), last_rank(), fault)


if __name__ == "__main__":
    main()
