"""Run ``scripts/bench-network``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from benchmarks.network import (
    counting,
    page,
    plans,
    probe,
    training,
    whole_steps,
)
from benchmarks.network.cluster import MARK, Cluster, inside
from benchmarks.network.launching import launch, launcher, rank_settings, run_apart, run_setting
from benchmarks.network.options import FRONTENDS, parse


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
    elif options.train:
        training.run(options, launch)
    elif options.frontend != "torch":
        measured = run_apart if options.frontend == "ddp" else run_setting
        whole_steps.run(options, measured, FRONTENDS[options.frontend])
    else:
        measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
