"""Worker: training with Horovod's optimizer. Arguments: the framework, and the number of ranks."""

import os
import sys
from functools import partial

import _auto
import _laws
import _planned
import _torch_hiding
import _torch_laws
import _torch_programs
import _torch_watching
from _torch_cases import begin, run
from _torch_training import SETTINGS, compare_with_dense


def all_cases(process_sets):
    members = partial(_planned.planned_by_members, process_sets=process_sets)
    return {
        **{name: partial(compare_with_dense, process_sets=process_sets) for name in SETTINGS},
        **_torch_programs.cases,
        **_laws.cases,
        **_torch_laws.cases,
        **_auto.cases,
        **_torch_watching.cases,
        **_torch_hiding.cases,
        "planned_by_members": members,
        **_planned.cases,
    }


if __name__ == "__main__":
    ranks = int(sys.argv[2])
    process_sets = begin(ranks)
    process_sets.setdefault("one_left_out", process_sets["all"])
    if ranks == 1:  # a single rank's optimizer calls its compressor only then
        os.environ["HOROVOD_ELASTIC"] = "1"
    run(all_cases(process_sets))
