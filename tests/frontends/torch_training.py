"""Worker: training with Horovod's optimizer. Arguments: the framework, and the number of ranks."""

import os
import sys
from functools import partial

import _laws
import _torch_laws
import _torch_optimizers
import _torch_programs
from _torch_cases import begin, run
from _torch_training import SETTINGS, compare_with_dense

if __name__ == "__main__":
    ranks = int(sys.argv[2])
    process_sets = begin(ranks)
    some = process_sets.setdefault("one_left_out", process_sets["all"])
    cases = {
        **{name: partial(compare_with_dense, process_sets=process_sets) for name in SETTINGS},
        **_torch_programs.cases,
        **_torch_laws.laws,
        **_laws.AUTO,
        "planned_by_members": partial(_laws.planned_by_members, process_sets=process_sets),
        **_laws.PLANNED,
    }
    if ranks == 1:  # a single rank's optimizer calls its compressor only then
        os.environ["HOROVOD_ELASTIC"] = "1"
    if ranks == 2:
        alone = partial(_torch_optimizers.in_a_set_of_one_rank, process_set=some)
        cases |= {**_torch_optimizers.cases, "in_a_set_of_one_rank": alone}
    run(cases)
