"""Training steps over a real wire: dense, fp16, exact top-k, DGC and ours, side by side on shaped
hosts.

Writes OUTPUT.json, OUTPUT.md and OUTPUT.png.  Every figure is the median over rounds of a ratio or
a time taken in one round, in which all methods ran one after the other, each in a launch of its
own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.network import counting, page, plans, probe, simulated, tensorflow_page, training
from benchmarks.network.cluster import MARK, Cluster, bits_per_second, inside
from benchmarks.network.launching import launch, launcher, rank_settings, run_apart, run_setting
from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES

RECORDED = ("resnet50", "vgg16", "lstm", "transformer")
"""Models that can be trained too."""
METHODS = ("dense", "fp16", "topk", "dgc", "auto")
COMPUTE = ("none", "asleep", "busy", "real")


def measure(options: argparse.Namespace) -> None:
    """Measure every setting, and write it as soon as it is there."""
    cluster = Cluster(options.hosts)
    cluster.lay()
    document = page.begun(options)
    for rate in options.rates:
        shaped = None if rate == "none" else rate
        cluster.shape(shaped)
        wire = probe.measure(cluster, shaped)
        print(f"{rate}: {page.describe_wire(wire)}", flush=True)
        for model in options.models:
            for compute in options.compute:
                print(f"{rate}, {model}, compute {compute}", flush=True)
                started = time.time()
                result = run_apart(cluster, options, model, compute)
                setting = {
                    **{"rate": rate, "model": model, "compute": compute, "hosts": options.hosts},
                    **{
                        "controller": options.controller,
                        "command": page.command(),
                        "wire": wire,
                        "is_apart": True,
                        **result,
                    },
                    **{"load": os.getloadavg()[1], "seconds": round(time.time() - started)},
                }
                page.add(document, setting)
                page.write(document, options.output)
                print(page.table(setting), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench-network",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=4, help="one rank on each (default 4)")
    parser.add_argument(
        "--rates", nargs="+", default=["100mbit", "1gbit", "10gbit", "none"], help="none: unshaped"
    )
    parser.add_argument("--models", nargs="+", default=["resnet50"], choices=ARCHITECTURES)
    parser.add_argument("--compute", nargs="+", default=["none"], choices=COMPUTE)
    parser.add_argument(
        "--backward-ms", type=float, default=80.0, help="of asleep and busy (default 80)"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help=f"the last is ours (default {' '.join(METHODS)}; of --train "
        f"{' '.join(training.METHODS)})",
    )
    parser.add_argument(
        "--frontend",
        default="torch",
        choices=("torch", "tensorflow"),
        help="tensorflow: whole steps, on a page of its own",
    )
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--controller", default="gloo", choices=("gloo", "mpi"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=5, help="a round, of a method that takes less than 1.5 s"
    )
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first round")
    parser.add_argument(
        "--exchanges",
        action="store_true",
        help="count every exchange's bytes on 2 to 4 hosts instead",
    )
    parser.add_argument(
        "--plans",
        action="store_true",
        help="messages planned in the run instead, on --least-hosts to --hosts",
    )
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="steps as hvd-sparse simulate predicts them, on as many",
    )
    parser.add_argument(
        "--train",
        nargs="+",
        choices=training.OPTIMIZERS,
        help="whole trainings of these tasks instead: time to accuracy",
    )
    parser.add_argument(
        "--least-hosts", type=int, default=2, help="of --plans and --simulated (default 2)"
    )
    parser.add_argument(
        "--densities", type=float, nargs="+", default=[0.001, 0.01], help="of --simulated"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of --simulated and --train: few rounds or steps, to see that it works",
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="keep the settings of OUTPUT.json that are not measured anew",
    )
    parser.add_argument(
        "--render", action="store_true", help="measure nothing, write the page of OUTPUT.json anew"
    )
    parser.add_argument(
        "--output", type=Path, help="without a suffix (docs/results/..., by what is measured)"
    )
    options = parser.parse_args()
    options.methods = options.methods or list(training.METHODS if options.train else METHODS)
    names = {
        "exchanges": "exchanges-on-hosts",
        "plans": "plans-on-hosts",
        "simulated": "simulation-on-hosts",
        "train": "time-to-accuracy",
    }
    name = next((names[option] for option in names if getattr(options, option)), "network")
    if options.frontend != "torch":
        others = [f"--{each}" for each in (*names, "append", "render") if getattr(options, each)]
        if others or not set(options.compute) <= {"none", "busy"}:
            parser.error(
                "--frontend tensorflow: --compute none or busy, and without "
                f"{' '.join(others) or 'others'}"
            )
        if unknown := {"topk", "dgc"} & set(options.methods):
            parser.error(
                "--frontend tensorflow: --methods dense fp16 and ours; "
                f"{' and '.join(sorted(unknown))} is PyTorch's"
            )
        name = "network-tensorflow"
    options.output = options.output or Path("docs/results", name)
    for rate in options.rates:
        if rate != "none":
            bits_per_second(rate)
    if "real" in options.compute and not set(options.models) <= set(RECORDED):
        parser.error(f"--compute real: only {', '.join(RECORDED)} can be trained")
    if options.simulated and "real" in options.compute:
        parser.error(
            "--simulated: --compute none, asleep or busy, whose backward passes are known "
            "beforehand"
        )
    if not 2 <= options.least_hosts <= options.hosts:
        parser.error("--hosts: at least 2, and no less than --least-hosts")
    return options


def main() -> int:
    options = parse()
    if options.render:
        page.write(
            json.loads(options.output.with_suffix(".json").read_text(encoding="utf-8")),
            options.output,
        )
        return 0
    if os.environ.get(MARK) != "1":
        command = inside([sys.executable, "-m", "benchmarks.network", *sys.argv[1:]])
        return subprocess.run(command, check=False).returncode
    if options.exchanges:
        counting.write(
            counting.run(options, launcher, rank_settings()),
            page.environment(options),
            options.output,
        )
    elif options.plans:
        plans.run(options, run_setting)
    elif options.simulated:
        simulated.run(options, run_setting, launch)
    elif options.train:
        training.run(options, launch)
    elif options.frontend != "torch":
        tensorflow_page.run(options, run_setting)
    else:
        measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
