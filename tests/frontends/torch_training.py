"""Worker: laws 1 to 3 through Horovod's optimizer, in one launch.  Argument: the number of
ranks."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import _torch_auto
import _torch_hiding
import _torch_laws
import _torch_planned
import _torch_programs
import _torch_watching
import horovod.torch as hvd
from _common import Case
from _torch_cases import run_torch_cases
from _torch_density_one import SETTINGS, compare_with_dense


def all_cases(process_sets: dict[str, Any]) -> dict[str, Case]:
    settings = {name: partial(compare_with_dense, process_sets=process_sets) for name in SETTINGS}
    planned = {
        "planned_by_members": partial(_torch_planned.planned_by_members, process_sets=process_sets)
    }
    planned |= _torch_planned.cases
    return {
        **settings,
        **_torch_programs.cases,
        **_torch_laws.cases,
        **_torch_auto.cases,
        **_torch_watching.cases,
        **_torch_hiding.cases,
        **planned,
    }


def main() -> None:
    ranks = int(sys.argv[1])
    process_sets = {"all": hvd.global_process_set, "one_left_out": hvd.global_process_set}
    if ranks > 1:
        process_sets["one_left_out"] = hvd.ProcessSet(list(range(ranks - 1)))
        hvd.init(process_sets=[process_sets["one_left_out"]])
    else:
        hvd.init()
        os.environ["HOROVOD_ELASTIC"] = (
            "1"  # a single rank's optimizer calls its compressor only then
        )
    run_torch_cases(all_cases(process_sets))


if __name__ == "__main__":
    main()
