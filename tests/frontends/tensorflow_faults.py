"""Worker: faults that must end in an error of the project's own, on every rank.  Arguments: ranks,
controller, cases (or all)."""

from __future__ import annotations

import sys

from _common import run_cases
from _tensorflow_cases import begin, end, hvd, meet
from _tensorflow_mismatches import MISMATCHES, process_set_cases
from _tensorflow_recoveries import RECOVERIES

if __name__ == "__main__":
    process_sets = begin(int(sys.argv[1]))
    cases = {**RECOVERIES, **MISMATCHES, **process_set_cases(process_sets)}
    run_cases({name: cases[name] for name in sys.argv[3:] or cases}, hvd.rank(), meet)
    end()
