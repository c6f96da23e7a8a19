"""Worker: the last rank stops calling.  Argument: the step, from 0, at which it is no longer
there."""

from __future__ import annotations

import os
import sys

from _tensorflow_cases import begin, hvd, meet, outcome_of, variables_of
from _tensorflow_mismatches import SHAPES, compress, last_rank, step_of
from harness import report, say, wait_for


def main() -> None:
    begin(2)
    variables = variables_of(SHAPES)
    compressor = compress(variables, name="absent")
    meet()  # a rank that was still importing would be absent, too
    for _ in range(int(sys.argv[1])):
        step_of(variables, compressor)()
    if last_rank():
        report(hvd.rank(), "absent")
        wait_for("the error")
    else:
        report(hvd.rank(), outcome_of(step_of(variables, compressor)))
        say("the error")
    os._exit(1)  # after an error, and without waiting for a rank that is not there


if __name__ == "__main__":
    main()
