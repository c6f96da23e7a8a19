"""Training steps over a real wire: dense, fp16, exact top-k, DGC and ours, side by side on shaped
hosts.

Writes OUTPUT.json, OUTPUT.md and OUTPUT.png.  Every figure is the median over rounds of a ratio or
a time taken in one round, in which all methods ran one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._limited import run_limited
from benchmarks.network import counting, page, plans, probe, simulated, tensorflow_page
from benchmarks.network.cluster import (
    INTERFACE,
    MARK,
    SUBNET,
    Cluster,
    bits_per_second,
    inside,
)
from hvd_sparse.autotune.costmodel.architectures import ARCHITECTURES

RECORDED = ("resnet50", "vgg16", "lstm", "transformer")
"""Models that can be trained too."""
COMPUTE = ("none", "asleep", "busy", "real")
RUN_LIMIT_S = 3600


def launcher(cluster: Cluster, controller: str, ranks: int = 1) -> list[str]:
    """Return the command that starts so many ranks on every host."""
    slots, total = ",".join(f"{host}:{ranks}" for host in cluster.hosts), str(ranks * cluster.size)
    if controller == "gloo":
        return [
            "horovodrun",
            "--gloo",
            "-np",
            total,
            "-H",
            slots,
            "--network-interfaces",
            INTERFACE,
        ]
    settings = {
        "plm_rsh_agent": "ssh",
        "btl": "self,tcp",
        "btl_tcp_if_include": f"{SUBNET}.0/24",
        "oob_tcp_if_include": f"{SUBNET}.0/24",
        "mpi_yield_when_idle": "1",
    }
    arguments = [part for name, value in settings.items() for part in ("--mca", name, value)]
    passed = [part for name in ("PATH", "PYTHONPATH", *_settings()) for part in ("-x", name)]
    return ["mpirun", "-np", total, "-H", slots, "--bind-to", "none", *arguments, *passed]


def _settings() -> dict[str, str]:
    """Return the settings of every rank, the same for all methods."""
    return {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        # the default of 1,024 is less than the names of all methods together
        "HOROVOD_CACHE_CAPACITY": "4096",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "300",
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("HOROVOD_", "HVD_SPARSE_"))
        },
    }


def run_setting(
    cluster: Cluster, options: argparse.Namespace, model: str, compute: str
) -> dict[str, Any]:
    """Run every method on one model, over the wire as it is shaped now."""
    with tempfile.TemporaryDirectory(prefix="hvd-sparse-network-") as folder:
        output = Path(folder) / "rank0.json"
        module = "worker" if options.frontend == "torch" else f"{options.frontend}_worker"
        worker = [
            sys.executable,
            "-m",
            f"benchmarks.network.{module}",
            "--model",
            model,
            "--compute",
            compute,
        ]
        for name in ("backward_ms", "density", "rounds", "steps", "warmup"):
            worker += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        worker += [
            "--output",
            str(output),
            *(["--plans"] if options.plans else ["--methods", *options.methods]),
        ]
        return launch(cluster, options.controller, worker, output)


def launch(cluster: Cluster, controller: str, program: list[str], output: Path) -> dict[str, Any]:
    """Run a program on all hosts; the JSON that its rank 0 leaves in ``output``."""
    command = cluster.on(cluster.hosts[0], [*launcher(cluster, controller), *program])
    environment = {**os.environ, **cluster.environment(), **_settings(), "PYTHONPATH": os.getcwd()}
    code, printed = run_limited(command, environment, RUN_LIMIT_S)
    if code != 0 or not output.exists():
        raise RuntimeError(f"the ranks ended with {code}:\n{printed[-4000:]}")
    return json.loads(output.read_text(encoding="utf-8"))


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
                result = run_setting(cluster, options, model, compute)
                setting = {
                    **{"rate": rate, "model": model, "compute": compute, "hosts": options.hosts},
                    **{
                        "controller": options.controller,
                        "command": page.command(),
                        "wire": wire,
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
        default=["dense", "fp16", "topk", "dgc", "auto"],
        help="the last is ours",
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
        "--least-hosts", type=int, default=2, help="of --plans and --simulated (default 2)"
    )
    parser.add_argument(
        "--densities", type=float, nargs="+", default=[0.001, 0.01], help="of --simulated"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of --simulated: costs from few rounds, to see that it works",
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
    names = {
        "exchanges": "exchanges-on-hosts",
        "plans": "plans-on-hosts",
        "simulated": "simulation-on-hosts",
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
            counting.run(options, launcher, _settings()), page.environment(options), options.output
        )
    elif options.plans:
        plans.run(options, run_setting)
    elif options.simulated:
        simulated.run(options, run_setting, launch)
    elif options.frontend != "torch":
        tensorflow_page.run(options, run_setting)
    else:
        measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
