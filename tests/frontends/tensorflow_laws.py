"""Worker: laws, faults, ``auto``, and density 1.0 in the settings of this place.  Arguments: ranks,
controller, cases."""

from __future__ import annotations

import sys
from functools import partial

from _common import run_cases
from _tensorflow_auto import AUTO, auto_leaves_alone_who_is_not_in_its_process_set
from _tensorflow_cases import begin, end, hvd, meet
from _tensorflow_identity import IDENTITY
from _tensorflow_identity_keras import IDENTITY_IN_KERAS
from _tensorflow_keras import compare_keras
from _tensorflow_laws import LAWS
from _tensorflow_mismatches import MISMATCHES, process_set_cases
from _tensorflow_recoveries import RECOVERIES
from _tensorflow_settings import KERAS_SETTINGS, TAPE_SETTINGS, settings_of
from _tensorflow_tape import compare_tape

if __name__ == "__main__":
    place = (int(sys.argv[1]), sys.argv[2])
    process_sets = begin(place[0])
    members = process_sets.get("one_left_out", process_sets["all"])
    leaves_alone = partial(auto_leaves_alone_who_is_not_in_its_process_set, process_set=members)
    cases = {
        **IDENTITY,
        **IDENTITY_IN_KERAS,
        **LAWS,
        **AUTO,
        leaves_alone.func.__name__: leaves_alone,
        **RECOVERIES,
        **MISMATCHES,
        **process_set_cases(process_sets),
    }
    for name, setting in settings_of(TAPE_SETTINGS, *place).items():
        cases[f"tape-{name}"] = partial(compare_tape, setting=setting, process_sets=process_sets)
    for name, setting in settings_of(KERAS_SETTINGS, *place).items():
        cases[f"keras-{name}"] = partial(compare_keras, setting=setting, process_sets=process_sets)
    run_cases({name: cases[name] for name in sys.argv[3:]}, hvd.rank(), meet)
    end()
