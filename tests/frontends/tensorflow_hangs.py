"""Worker: something happens to the last rank in mid-training.  Argument: what."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from _hangs import FAULTS, PASSING, TIMEOUT_S, train, train_on
from _tensorflow_cases import begin, hvd, meet, outcome_of, variables_of
from _tensorflow_mismatches import SHAPES, compress, last_rank, step_of
from harness import report, say, wait_for


def take_the_first_step(step: Callable[[], Any]) -> None:
    """On all ranks but the last."""
    if last_rank():
        report(hvd.rank(), "absent")
        wait_for("the error")
    else:
        report(hvd.rank(), outcome_of(step))
        say("the error")
    os._exit(1)  # after an error, and without waiting for a rank that is not there


def main() -> None:
    begin(2)
    variables = variables_of(SHAPES)
    compressor = compress(variables, name="hangs", timeout_s=TIMEOUT_S)
    step = tf.function(step_of(variables, compressor))
    meet()  # a rank that was still importing would meet the short limit
    if sys.argv[1] == "never_comes":
        take_the_first_step(step)
    report(hvd.rank(), "here")
    if sys.argv[1] in PASSING:
        train_on(step, last_rank(), PASSING[sys.argv[1]], hvd.allgather_object(os.getpid()))
        report(hvd.rank(), compressor.stats()["steps"])
    else:
        train(step, last_rank(), {**FAULTS, "joins": hvd.join}[sys.argv[1]])


if __name__ == "__main__":
    main()
