"""Worker: faults that must raise an error on every rank. Arguments: the framework, ranks."""

import sys
from functools import partial

import _faults
from _framework import NAME, fw

if NAME == "torch":
    from _torch_faults import cases
else:
    from _tensorflow_faults import cases

if __name__ == "__main__":
    process_sets = fw.begin(int(sys.argv[2]))
    cases = {**_faults.cases, **cases}
    if "one_left_out" in process_sets:
        cases |= _faults.process_set_cases(process_sets["one_left_out"])
    fw.run({name: partial(_faults.checked, case) for name, case in cases.items()})
