"""Count the calls on the way of one tensor through a step, and draw who calls whom.

Writes OUTPUT.md and OUTPUT.json, and prints what is wanted and what there is of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import _ranks
from benchmarks.journey import page
from benchmarks.journey.table import lines_of_tensorflow, lines_of_torch

RANKS = 2
LIMIT_S = 240
FRAMEWORKS = {"torch": lines_of_torch, "tensorflow": lines_of_tensorflow}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journey", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=_ranks.ROOT / "docs" / "results" / "journey",
        help="without a suffix (docs/results/journey)",
    )
    parser.add_argument(
        "--frameworks", nargs="+", default=list(FRAMEWORKS), choices=FRAMEWORKS, help="(all)"
    )
    options = parser.parse_args()
    lines = []
    for framework in options.frameworks:
        module = f"benchmarks.journey.{framework}_worker"
        found = _ranks.launch(module, RANKS, limit_s=LIMIT_S)[0]
        lines += FRAMEWORKS[framework](found)
    page.write(lines, options.output)
    print(page.goals(lines), page.table(lines), sep="\n\n")
    print(f"\n{options.output}.md and .json are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
