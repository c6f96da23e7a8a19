"""Launches programs by Gloo and MPI on a cluster of three namespaces; prints JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness import LIMIT_S
from installed import horovod_parts

from benchmarks.network.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
folder = Path(sys.argv[1])
cluster = Cluster(3)
cluster.lay()
os.environ.update(cluster.environment(), HVD_SPARSE_MARK="passed on", OMP_NUM_THREADS="1")
HOSTS = "host1:1,host2:2,host3:1"


def launch(*arguments):
    command = cluster.on("host1", [str(ROOT / "scripts" / "launch"), "-H", HOSTS, *arguments])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return {"code": done.returncode, "output": done.stdout + done.stderr}


def logs(where):
    return {
        path.name: "".join(each.read_text() for each in sorted(path.glob("std*")))
        for path in sorted(where.rglob("rank.*"))
    }


rank = [sys.executable, str(ROOT / "tests" / "launch" / "rank.py")]
seen = {}
for controller in sorted(horovod_parts() & {"gloo", "mpi"}):
    where = folder / controller
    by = ("--controller", controller, "--output-filename")
    outcome = launch(*by, str(where), "--", *rank)
    failing = launch(*by, str(folder / "failing"), "--", *rank, "--fail-on", "2")
    seen[controller] = {**outcome, "logs": logs(where), "failing": failing}
seen["dry"] = launch("--controller", "mpi", "--dry-run", "--", *rank)
(folder / "seen.json").write_text(json.dumps(seen))
