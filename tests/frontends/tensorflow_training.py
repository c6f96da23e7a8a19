"""Worker: laws, identity of gradients, ``auto``, plans, optimizers of Keras 2, and density 1.0 in
the settings of this place (ranks and controller). Arguments: the framework, the number of ranks,
the controller, and names of cases; without names, all cases of this place run."""

import sys
from functools import partial

import _laws
import keras_training
from _tensorflow_cases import begin, run
from _tensorflow_identity import IDENTITY
from _tensorflow_keras import IDENTITY_IN_KERAS, compare_keras
from _tensorflow_laws import AUTO, LAWS, auto_leaves_alone_who_is_not_in_its_process_set
from _tensorflow_settings import KERAS_SETTINGS, TAPE_SETTINGS, settings_of
from _tensorflow_tape import compare_tape

if __name__ == "__main__":
    ranks, controller = int(sys.argv[2]), sys.argv[3]
    process_sets = begin(ranks)
    cases = {}
    for kind, compare, settings in (
        ("tape", compare_tape, TAPE_SETTINGS),
        ("keras", compare_keras, KERAS_SETTINGS),
    ):
        for name, setting in settings_of(settings, ranks, controller).items():
            made = partial(compare, setting=setting, process_sets=process_sets)
            cases[f"{kind}-{name}"] = made
    identity = {f"identity_{name}": case for name, case in (IDENTITY | IDENTITY_IN_KERAS).items()}
    if ranks > 1:
        cases |= {**_laws.cases, **LAWS}
    if ranks in (2, 3):
        members = process_sets.get("one_left_out", process_sets["all"])
        alone = partial(auto_leaves_alone_who_is_not_in_its_process_set, process_set=members)
        cases |= {**identity, **_laws.AUTO, **AUTO, **_laws.PLANNED}
        cases[alone.func.__name__] = alone
    if ranks == 2:
        cases |= keras_training.cases
    if ranks == 1:
        case = "identity_direct_allreduce_of_a_group"
        cases[case] = identity[case]
    run({name: cases[name] for name in sys.argv[4:] or cases})
