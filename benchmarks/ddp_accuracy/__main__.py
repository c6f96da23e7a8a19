"""Accuracy of DistributedDataParallel with hooks: PyTorch's own and ours, on two real ranks.

Trains a small network on scikit-learn's digits with every hook, over several seeds, and writes
docs/results/ddp-accuracy.md and .json; some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._limited import ROOT, run_limited
from benchmarks._models import Cnn
from benchmarks._ranks import SETTINGS, SHOWN
from benchmarks._streams import environment, json_by_line
from benchmarks.ddp_accuracy import page
from benchmarks.ddp_accuracy.training import CHANNELS, HIDDEN

METHODS = ("dense", "fp16", "powersgd1", "powersgd2", "powersgd4", "ldte_bs 0.01", "ldte_bs 0.001")
RANKS, SEEDS, STEPS, LIMIT_S = 2, 8, 300, 900


def measure(method: str, seeds: int, steps: int) -> dict[str, Any]:
    """Return a hook's trainings.

    Raises
    ------
    RuntimeError : a rank failed, or took longer than its limit
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    module = ["--nproc-per-node", str(RANKS), "-m", "benchmarks.ddp_accuracy.worker"]
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-bench-") as folder:
        output = Path(folder) / "row.json"
        command = [*launcher, *module, method, str(seeds), str(steps), str(output)]
        settings = {**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)}
        code, printed = run_limited(command, settings, LIMIT_S)
        if code != 0 or not output.exists():
            raise RuntimeError(f"{method} ended with {code}:\n{printed[-SHOWN:]}")
        row: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return row


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ddp_accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, metavar="HOOK")
    parser.add_argument("--quick", action="store_true", help="few steps: no figures to quote")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    parser.add_argument("--output", type=Path, default=Path("docs/results/ddp-accuracy"))
    options = parser.parse_args()
    record = options.output.with_suffix(".json")
    seeds, steps = (2, 12) if options.quick else (SEEDS, STEPS)
    found: dict[str, Any] = {"rows": []}
    if record.exists() and not options.quick:
        found = json.loads(record.read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in found["rows"]}
    numel = sum(parameter.numel() for parameter in Cnn(CHANNELS, HIDDEN).parameters())
    head = {"made_with": environment(), "ranks": RANKS, "seeds": seeds, "steps": steps}
    for method in () if options.render else options.methods:
        rows[method] = measure(method, seeds, steps)
        ordered = [rows[each] for each in METHODS if each in rows]
        found = {**head, "numel": numel, "rows": ordered}
        lists = {"rows": ordered}
        record.write_text(json_by_line({**head, "numel": numel}, lists), encoding="utf-8")
        print(f"{method}: {rows[method]['rate']:g} of {rows[method]['tried']}", flush=True)
    options.output.with_suffix(".md").write_text(page.render(found), encoding="utf-8")


if __name__ == "__main__":
    main()
