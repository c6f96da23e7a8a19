"""Worker: law 3 through the tape and through Keras, in the settings of this place.  Arguments:
ranks, controller."""

from __future__ import annotations

import sys
from functools import partial

from _common import run_cases
from _tensorflow_cases import begin, end, hvd, meet
from _tensorflow_keras import compare_keras
from _tensorflow_settings import KERAS_SETTINGS, TAPE_SETTINGS, settings_of
from _tensorflow_tape import compare_tape

if __name__ == "__main__":
    place = (int(sys.argv[1]), sys.argv[2])
    process_sets = begin(place[0])
    cases = {
        f"tape-{name}": partial(compare_tape, setting=setting, process_sets=process_sets)
        for name, setting in settings_of(TAPE_SETTINGS, *place).items()
    }
    cases |= {
        f"keras-{name}": partial(compare_keras, setting=setting, process_sets=process_sets)
        for name, setting in settings_of(KERAS_SETTINGS, *place).items()
    }
    run_cases(cases, hvd.rank(), meet)
    end()
