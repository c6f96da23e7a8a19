#!/usr/bin/env python
"""Test every codec and the reader of messages with inputs that a coverage-guided fuzzer chooses.

    pip install 'hvd-sparse[fuzz]'                    # atheris, which needs Linux
    scripts/fuzz.py                                   1,000,000 readings, a few minutes
    scripts/fuzz.py --inputs 50000 --seed 7 --output fuzz-output

Every input is read twice: unchanged, and with the right magic number, length and checksums, so that
half of the readings pass these checks.  --inputs is the number of readings.  A reader must refuse
an input as corrupt, or encoding the decoded entries must give the same bytes.  Any other result, a
crash, more than 2 GB of memory, or more than 20 seconds stops the run, and the input is stored in
the output folder.  After the last reading, the record of the run is written there too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

WATCHED = [
    "hvd_sparse.codecs",
    "hvd_sparse.kernels",
    "hvd_sparse.wire",
    "hvd_sparse.step",
    "conformance.fuzzing",
]
with atheris.instrument_imports(include=WATCHED):
    from conformance.fuzzing import seeds, targets

import numpy as np  # noqa: E402

LONGEST = 600
MEGABYTES, SECONDS = 2048, 20


class Run:
    """Counts the readings of inputs, and writes the record of the run after the last one."""

    def __init__(self, inputs: int, record: Path) -> None:
        self.targets = targets()
        self.wanted, self.record = inputs, record
        self.read: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.distinct: set[int] = set()
        self.started = time.monotonic()

    def one(self, data: bytes) -> None:
        """Check one input. Its first byte chooses the target."""
        if not data:
            return
        name, check, repair = self.targets[data[0] % len(self.targets)]
        for kind, payload in (("as is", data[1:]), ("repaired", repair(data[1:]))):
            self.read[kind] += 1
            self.read[name] += 1
            self.distinct.add(hash((name, payload)))
            if check(payload):
                self.accepted[kind] += 1
                self.accepted[name] += 1
        if self.read["as is"] + self.read["repaired"] >= self.wanted:
            self.write()
            os._exit(0)  # libFuzzer reports any other exit as a crash

    def write(self) -> None:
        document = {
            "inputs": self.read["as is"] + self.read["repaired"],
            "distinct inputs": len(self.distinct),
            "with checksums made right": self.read["repaired"],
            "accepted": self.accepted["as is"] + self.accepted["repaired"],
            "accepted with checksums made right": self.accepted["repaired"],
            "seconds": round(time.monotonic() - self.started),
            "made with": f"atheris, python {platform.python_version()}, numpy {np.__version__}",
            "by target": {
                n: f"{self.read[n]} inputs, {self.accepted[n]} accepted" for n, _, _ in self.targets
            },
        }
        text = json.dumps(document, indent=1)
        self.record.write_text(text + "\n", encoding="utf-8")
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = "number of readings, two for each input (default: 1,000,000)"
    parser.add_argument("--inputs", type=int, default=1_000_000, help=told)
    parser.add_argument("--seed", type=int, default=1, help="seed of the fuzzer (default: 1)")
    told = "folder of the record and of failed inputs (default: fuzz-output)"
    parser.add_argument("--output", type=Path, default=Path("fuzz-output"), help=told)
    options = parser.parse_args()
    corpus = options.output / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    run = Run(options.inputs, options.output / "fuzz.json")
    for number, (name, _, _) in enumerate(run.targets):
        for place, payload in enumerate(seeds(name)):
            (corpus / f"{number}-{place}").write_bytes(bytes([number]) + payload)
    warnings.simplefilter("error")
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-seed={options.seed}",
        f"-max_len={LONGEST}",
        "-len_control=0",
        "-print_final_stats=1",
    ]
    limits = [
        f"-rss_limit_mb={MEGABYTES}",
        f"-timeout={SECONDS}",
        f"-artifact_prefix={options.output}/",
    ]
    atheris.Setup(arguments + limits, run.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
