"""Horovod's own examples and tests, with Compression.none and with a compressor.

SOURCES is a checkout of Horovod 0.28.1: folders examples and test.  Every program runs on two ranks
of this machine, twice.  Exit code 1 if anything fails with the compressor alone that is no
documented limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks._streams import json_by_line
from benchmarks.horovod_suite import page, stand_ins
from benchmarks.horovod_suite.catalogue import Program, catalogue, is_checkout
from benchmarks.horovod_suite.rewriting import Compressor
from benchmarks.horovod_suite.running import RANKS, run

IN_EXAMPLES = Compressor("", "ldte_bs", "density=0.01", takes_optimizer=True)
IN_TESTS = Compressor("", "ldte_bs", "density=1")


WAYS = ("none", "sparse")


def outcomes_of(program: Program, way: str, sources: Path, limit_s: float) -> list[dict[str, str]]:
    """Run a program one way, and print what it, or each of its tests, comes to."""
    compressor = None if way == "none" else IN_TESTS if program.tests else IN_EXAMPLES
    outcomes = []
    for each in run(program, sources, compressor, limit_s):
        name = each.path.rpartition("/")[2] + (f"::{each.name}" if each.name else "")
        print(f"{each.way:8} {each.end:11} {name}", flush=True)
        outcomes.append(each.record())
    return outcomes


def environment() -> dict[str, str]:
    """Return the versions that the page names."""
    from importlib.metadata import version

    names = ("horovod", "torch", "tensorflow", "tf-keras", "numpy")
    return {"Python": sys.version.split()[0], **{name: version(name) for name in names}}


def _merged(old: list[dict[str, str]], new: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return all outcomes, those of a file that was run again in this way replaced."""
    again = {(each["path"], each["way"] == "none") for each in new}
    return [*(each for each in old if (each["path"], each["way"] == "none") not in again), *new]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/horovod-suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", type=Path, metavar="SOURCES")
    parser.add_argument(
        "--only", default="", help="paths with this in them; others keep their lines"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="likewise")
    parser.add_argument("--limit", type=float, default=240, help="seconds of a launch")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    parser.add_argument("--output", type=Path, default=Path("docs/results/horovod-suite"))
    options = parser.parse_args()
    if not is_checkout(options.sources):
        parser.error(f"{options.sources} has no examples and test of Horovod 0.28.1")
    record = options.output.with_suffix(".json")
    found: dict[str, Any] = {"outcomes": []}
    if record.exists():
        found = json.loads(record.read_text(encoding="utf-8"))
    replaced = list(stand_ins.names_of(stand_ins.install()))
    asked = {"examples": _shown(IN_EXAMPLES), "tests": _shown(IN_TESTS)}
    head = {"made_with": environment(), "ranks": RANKS, "replaced": replaced, **asked}
    programs = [p for p in catalogue(options.sources) if options.only in p.path]
    for program in () if options.render else programs:
        for way in options.ways:
            new = outcomes_of(program, way, options.sources, options.limit)
            found = {**head, "outcomes": _merged(found["outcomes"], new)}
            lists = {"outcomes": found["outcomes"]}
            record.write_text(json_by_line(head, lists), encoding="utf-8")
    known = [program.path for program in catalogue(options.sources)]
    text = page.render(found, page.lacking(known, found["outcomes"]))
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    rows = page.compared(found["outcomes"])
    for row in rows:
        if row["ours"]:
            print(f"fails with the compressor alone: {row['path']} {row['name']}: {row['why']}")
    print(page.verdict(rows))
    sys.exit(any(row["ours"] and not row["limit"] for row in rows))


def _shown(compressor: Compressor) -> str:
    return f"Compression.{compressor.method}(..., {compressor.options})"


if __name__ == "__main__":
    main()
