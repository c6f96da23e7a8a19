"""Inside a cluster of three namespaces: launches that must work and launches that must not; what
came of them in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.network.cluster import Cluster

ROOT = Path(__file__).resolve().parent.parent.parent
folder = Path(sys.argv[1])
cluster = Cluster(3)
cluster.lay()
os.environ.update(cluster.environment(), HVD_SPARSE_MARK="passed on", OMP_NUM_THREADS="1")


def launch(*arguments: str, limit_s: float = 60) -> dict[str, object]:
    """On host1, as a user would."""
    command = cluster.on("host1", [sys.executable, "-m", "hvd_sparse", "launch", *arguments])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )
    return {"code": done.returncode, "output": done.stdout + done.stderr}


def logs(where: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(where.glob("rank.*.log"))}


rank = [sys.executable, str(ROOT / "tests" / "launch" / "rank.py")]
hosts = "host1:1,host2:2,host3:1"
seen: dict[str, object] = {}
for controller in ("gloo", "mpi"):
    where = folder / controller
    outcome = launch("-H", hosts, "--controller", controller, "--log-dir", str(where), "--", *rank)
    seen[controller] = {**outcome, "logs": logs(where)}
seen["failing"] = launch(
    "-H", hosts, "--log-dir", str(folder / "failing"), "--", *rank, "--fail-on", "2"
)
seen["dry"] = launch("-H", hosts, "--controller", "mpi", "--dry-run", "--", *rank)
subprocess.run(["ip", "link", "set", "host3", "down"], check=True)  # pull the plug of host3
seen["unplugged"] = launch("-H", hosts, "--check-only")
subprocess.run(["ip", "link", "set", "host3", "up"], check=True)
(folder / "seen.json").write_text(json.dumps(seen))
