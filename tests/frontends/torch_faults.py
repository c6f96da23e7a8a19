"""Worker: faults that must end in an error of the project's own, on every rank.  Argument: the
number of ranks."""

from __future__ import annotations

import sys

import _torch_changed
import _torch_mismatches
import _torch_pauses
import _torch_recoveries
import horovod.torch as hvd
from _torch_cases import run_torch_cases


def main() -> None:
    subset = hvd.ProcessSet(list(range(int(sys.argv[1]) - 1)))
    hvd.init(process_sets=[subset])
    mismatches = {**_torch_mismatches.cases, **_torch_mismatches.process_set_cases(subset)}
    run_torch_cases(
        {
            **mismatches,
            **_torch_changed.cases,
            **_torch_recoveries.cases,
            **_torch_pauses.cases,
            **_torch_pauses.others,
        }
    )


if __name__ == "__main__":
    main()
