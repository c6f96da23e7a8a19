"""Run ``scripts/bench-network``."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.network import steps, trainings
from benchmarks.network.cluster import MARK, inside
from benchmarks.network.options import parse


def main() -> int:
    """Measure in new namespaces, which only this run uses; return the exit code."""
    options = parse()
    if os.environ.get(MARK) != "1":
        command = inside([sys.executable, "-m", "benchmarks.network", *sys.argv[1:]])
        return subprocess.run(command, check=False).returncode
    (trainings if options.train else steps).run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
