"""Print each mutant with the check that detects it; fail if one is not detected.

python scripts/mutants.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from conformance.mutants import MUTANTS, caught  # noqa: E402


def main() -> int:
    width = max(len(str(mutant)) for mutant in MUTANTS)
    survivors = 0
    for mutant in MUTANTS:
        objection = caught(mutant)
        survivors += objection is None
        print(f"{mutant!s:{width}}  {objection or 'NOT CAUGHT'}", flush=True)
    print(f"{len(MUTANTS)} mutants, {survivors} not caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
