"""Worker: the last rank stops calling.  Argument: the step, from 0, at which it is no longer
there."""

from __future__ import annotations

import os
import sys
import time

from _tensorflow_cases import begin, hvd, outcome_of, variables_of
from _tensorflow_mismatches import SHAPES, TIMEOUT_S, compress, last_rank, step_of
from harness import report


def main() -> None:
    begin(2)
    variables = variables_of(SHAPES)
    compressor = compress(variables, name="absent")
    for _ in range(int(sys.argv[1])):
        step_of(variables, compressor)()
    if last_rank():
        report(hvd.rank(), "absent")
        time.sleep(5 * TIMEOUT_S)
    else:
        report(hvd.rank(), outcome_of(step_of(variables, compressor)))
    os._exit(1)  # after an error, and without waiting for a rank that is not there


if __name__ == "__main__":
    main()
