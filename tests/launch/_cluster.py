"""Runs commands on host1 of a cluster of three namespaces, and writes their results as JSON.

``_cluster.py FOLDER CONTROLLER`` launches programs by "gloo" or "mpi". ``_cluster.py FOLDER BLOCK``
runs a block of the documentation, as a user would. The commands for SLURM get the variables that
SLURM sets in a job of three nodes. From these, Open MPI finds hosts and ranks. They also get the
host names that ``scontrol`` would print. SLURM itself does not run; ssh starts the programs that
srun would start.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from blocks import TRAINING, blocks_for
from harness import LIMIT_S, ROOT
from programs import put_program

from benchmarks.network.cluster import Cluster

HOSTS = "host1:1,host2:2,host3:1"
IN_TURN = (
    "mpirun --allow-run-as-root -np 4 -H host1:2,host2:2 --map-by node --bind-to none "
    "--mca pml ob1 --mca btl ^openib --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 "
    "--mca mpi_yield_when_idle 1 -x PATH -x PYTHONPATH -x TF_USE_LEGACY_KERAS"
)
"""Command whose ranks 0 and 2 run on one host, and 1 and 3 on the other."""
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOBID": "7",
    "SLURM_NNODES": "3",
    "SLURM_NODELIST": "host[1-3]",
    "SLURM_JOB_NODELIST": "host[1-3]",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "SLURM_CPUS_PER_TASK": "1",
    "OMPI_MCA_plm": "rsh",  # there is no srun to start anything on a host
}


def on_host1(cluster, command, **environment):
    done = subprocess.run(
        cluster.on("host1", command),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    return {"code": done.returncode, "output": done.stdout + done.stderr}


def logs(where):
    return {
        path.name: "".join(each.read_text() for each in sorted(path.glob("std*")))
        for path in sorted(where.rglob("rank.*"))
    }


def launched(cluster, folder, controller):
    rank = [sys.executable, str(ROOT / "tests" / "launch" / "rank.py")]

    def launch(*arguments):
        command = [str(ROOT / "scripts" / "launch"), "-H", HOSTS, "--controller", controller]
        return on_host1(cluster, [*command, *arguments], HVD_SPARSE_MARK="passed on")

    where = folder / "logs"
    outcome = launch("--output-filename", str(where), "--", *rank)
    failing = launch("--output-filename", str(folder / "failing"), "--", *rank, "--fail-on", "2")
    dry = launch("--dry-run", "--", *rank)
    outcome |= {"logs": logs(where), "failing": failing, "dry": dry}
    if controller == "mpi":
        command = f"{IN_TURN} {shlex.join(rank)} --exchange hierarchical"
        outcome["in turn"] = on_host1(cluster, ["sh", "-c", command])
    return outcome


def user_at(folder):
    (folder / ".venv" / "bin").mkdir(parents=True)
    activate = f'PATH="{Path(sys.executable).parent}:$PATH"\n'
    (folder / ".venv" / "bin" / "activate").write_text(activate)
    (folder / "train.py").symlink_to(TRAINING)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    names = '[ "$*" = "show hostnames host[1-3]" ] && echo host1 host2 host3 | tr " " "\\n"'
    put_program(folder / "bin" / "scontrol", names)
    return folder


def typed(cluster, folder, name):
    (block,) = (b for where in ("hosts", "slurm") for b in blocks_for(where) if b.name == name)
    script = user_at(folder / "user") / "commands"
    script.write_text(block.text)
    shell = "bash -e" if block.where == "slurm" else "sh -e"
    settings = JOB if block.where == "slurm" else {}
    path = f"{script.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # The hosts share this machine's cores, which none of them knows of.
    settings = {**settings, "PATH": path, "OMPI_MCA_mpi_yield_when_idle": "1"}
    command = ["sh", "-c", f"cd {script.parent} && exec {shell} {script}"]
    return on_host1(cluster, command, **settings)


if __name__ == "__main__":
    cluster = Cluster(3)
    cluster.lay()
    os.environ.update(cluster.environment(), OMP_NUM_THREADS="1")
    there, what = Path(sys.argv[1]), sys.argv[2]
    seen = (launched if what in ("gloo", "mpi") else typed)(cluster, there, what)
    (there / "seen.json").write_text(json.dumps(seen))
