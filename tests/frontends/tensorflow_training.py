"""Worker: laws 1 and 2, and gradients that say whose they are.  Arguments: ranks, controller, cases
(or all)."""

from __future__ import annotations

import sys
from functools import partial

from _common import run_cases
from _tensorflow_auto import AUTO, auto_leaves_alone_who_is_not_in_its_process_set
from _tensorflow_cases import begin, end, hvd, meet
from _tensorflow_identity import IDENTITY
from _tensorflow_identity_keras import IDENTITY_IN_KERAS
from _tensorflow_laws import LAWS

if __name__ == "__main__":
    process_sets = begin(int(sys.argv[1]))
    members = process_sets.get("one_left_out", process_sets["all"])
    leaves_alone = partial(auto_leaves_alone_who_is_not_in_its_process_set, process_set=members)
    cases = {
        **IDENTITY,
        **IDENTITY_IN_KERAS,
        **LAWS,
        **AUTO,
        leaves_alone.func.__name__: leaves_alone,
    }
    run_cases({name: cases[name] for name in sys.argv[3:] or cases}, hvd.rank(), meet)
    end()
