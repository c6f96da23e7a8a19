#!/usr/bin/env python
"""Feed every codec and the reader of messages with bytes that coverage chooses, until there were so
many inputs.

    pip install 'hvd-sparse[fuzz]'                    # atheris, which needs Linux
    scripts/fuzz.py                                   1,000,000 inputs, a few minutes
    scripts/fuzz.py --inputs 50000 --seed 7 --output fuzz-output

Every choice of the fuzzer is read twice: as it is, and with magic, length and checksums made right,
so that half of the inputs get past them.  Each is refused as corrupt or encodes back to the same
bytes; anything else, a crash, more than 2 GB or 20 seconds, stops the run and leaves the input in
the output folder.  The record of the run is written there too.
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
    """Counts what is read, and writes the record when it was enough."""

    def __init__(self, inputs: int, record: Path) -> None:
        self.targets = targets()
        self.wanted, self.record = inputs, record
        self.read: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.distinct: set[int] = set()
        self.started = time.monotonic()

    def one(self, data: bytes) -> None:
        """The first byte chooses the target."""
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
            os._exit(0)  # libFuzzer takes any other end for a crash

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
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("fuzz-output"))
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
