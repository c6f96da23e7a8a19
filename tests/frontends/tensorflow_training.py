"""Worker: laws 1 and 2, and gradients that say whose they are.  Arguments: ranks, controller, cases (or all)."""

from __future__ import annotations

import sys

from _common import run_cases
from _tensorflow_cases import begin, end, hvd, meet
from _tensorflow_identity import IDENTITY
from _tensorflow_identity_keras import IDENTITY_IN_KERAS
from _tensorflow_laws import LAWS

if __name__ == "__main__":
    begin(int(sys.argv[1]))
    cases = {**IDENTITY, **IDENTITY_IN_KERAS, **LAWS}
    run_cases({name: cases[name] for name in sys.argv[3:] or cases}, hvd.rank(), meet)
    end()
